#include "model/graphed_state_runner.h"

#include <ATen/ATen.h>

#include <map>

#include "model/forward_options.h"
#include "model/language_model.h"

namespace lazy {
namespace {

constexpr int64_t kMaxRecords = 32;  // maximum number of graphs; each occupies several megabytes

int64_t cycle_of(const LanguageModel& model) {
  const ModelConfig& c = model.config();
  // A graph cannot contain attention, which reads more keys with every token, or a mixture of experts, for which the
  // host must read which experts have tokens.
  if (model.offloaded() || c.attends() || (c.mlp.enabled && c.mlp.kind == MlpKind::experts)) return 0;
  if (c.positions.kind != PositionKind::rope && c.positions.kind != PositionKind::none) return 0;
  switch (c.mixer.type) {
    case MixerType::retnet:
    case MixerType::mamba2:
    case MixerType::delta_net:
    case MixerType::gated_delta_net:
      return 1;
    case MixerType::ttt_linear:
    case MixerType::ttt_mlp:
      return c.mixer.chunk <= kMaxRecords ? c.mixer.chunk : 0;
    default:
      return 0;  // Titans is not supported, because each token of a long chunk would need a different graph
  }
}

template <typename Use>
void for_each(const std::vector<std::vector<at::Tensor>>& layers, const Use& use) {
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    for (size_t n = 0; n < layers[layer].size(); ++n) use(layer, n, layers[layer][n]);
  }
}

bool alike(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() == b.defined() && (!a.defined() || (a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type()));
}

// Copies the tensors with one kernel launch per dtype.
void copy(const std::vector<std::vector<at::Tensor>>& to, const std::vector<std::vector<at::Tensor>>& from) {
  std::map<at::ScalarType, std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>>> all;
  for_each(from, [&](size_t layer, size_t n, const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.is_same(to[layer][n])) return;
    auto& [targets, sources] = all[tensor.scalar_type()];
    targets.push_back(to[layer][n]);
    sources.push_back(tensor);
  });
  for (auto& [type, both] : all) at::_foreach_copy_(both.first, both.second);
}

}  // namespace

GraphedStateRunner::GraphedStateRunner(LanguageModel& model, bool record)
    : model_(model), cycle_(record ? cycle_of(model) : 0), recorded_(model.device(), cycle_ > 0, "generate: steps") {}
GraphedStateRunner::~GraphedStateRunner() = default;

at::Tensor GraphedStateRunner::logits(const at::Tensor& ids, KVCache& cache) {
  // The first token allocates the states, so it uses the ordinary forward pass.
  if (cycle_ == 0 || cache.length == 0) return model_.logits(model_.forward(ids, {.cache = &cache}).hidden);
  enter(ids, cache);
  ids_.copy_(ids);
  const int64_t place = cache.length % cycle_;
  recorded_.run(place, [this, place] { run(place); });
  ++cache.length;
  return logits_;
}

void GraphedStateRunner::run(int64_t place) {
  KVCache cache;
  cache.states = states_;
  // Add one cycle to the length, because the pass would treat a token at length 0 as the first token of a text.
  cache.length = cycle_ + place;
  const at::Tensor logits = model_.logits(model_.forward(ids_, {.cache = &cache}).hidden);
  if (!logits_.defined()) logits_ = at::empty_like(logits);
  logits_.copy_(logits);
  copy(states_, cache.states);
}

void GraphedStateRunner::enter(const at::Tensor& ids, KVCache& cache) {
  bool here = turn_ == &cache;
  for_each(cache.states,
           [&](size_t layer, size_t n, const at::Tensor& state) { here = here && state.is_same(states_[layer][n]); });
  if (here) return;
  if (turn_ != &cache) leave();
  bool fits = ids_.defined() && ids_.sizes() == ids.sizes() && states_.size() == cache.states.size();
  for_each(cache.states, [&](size_t layer, size_t n, const at::Tensor& state) {
    fits = fits && states_[layer].size() == cache.states[layer].size() && alike(states_[layer][n], state);
  });
  if (!fits) {
    recorded_.clear();
    ids_ = at::empty_like(ids);
    logits_ = at::Tensor();
    states_ = cache.states;
    for (auto& layer : states_) {
      for (at::Tensor& state : layer) state = state.defined() ? at::empty(state.sizes(), state.options()) : state;
    }
  }
  copy(states_, cache.states);
  cache.states = states_;
  turn_ = &cache;
}

void GraphedStateRunner::leave() {
  if (!turn_) return;
  for_each(states_, [&](size_t layer, size_t n, const at::Tensor& state) {
    at::Tensor& kept = turn_->states[layer][n];
    if (state.defined() && kept.is_same(state)) kept = state.clone();
  });
  turn_ = nullptr;
}

void GraphedStateRunner::forget(const KVCache& cache) {
  if (turn_ == &cache) turn_ = nullptr;
}

}  // namespace lazy
