#include "serve/packed_passes.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>

#include "core/log.h"

namespace lazy {

namespace {

constexpr int64_t kPassTokens = 4096;    // on a GPU: enough to keep it busy
constexpr int64_t kKeyTile = 128;        // the most keys that an attention kernel on a GPU reads as one
constexpr int64_t kLeastSequences = 32;  // of a recorded pass
constexpr size_t kMostRecorded = 64;     // shapes

int64_t power_above(int64_t x) { return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(x))); }

// Four sizes between a power of two and the next one.
int64_t padded(int64_t keys) {
  const int64_t step = std::max<int64_t>(power_above(keys) / 8, kKeyTile);
  return (keys + step - 1) / step * step;
}

}  // namespace

struct PackedPasses::Layout {
  std::vector<int64_t> ids, positions, slots, places;
  std::vector<int32_t> ends_q{0}, ends_k{0};
  int64_t longest = 1;

  // The sequence's keys; its queries are there already.
  void end_sequence(int64_t keys) {
    ends_q.push_back(static_cast<int32_t>(positions.size()));
    ends_k.push_back(static_cast<int32_t>(ends_k.back() + keys));
  }
  // A sequence without queries, of as many keys of place 0.
  void add_keys(int64_t keys) {
    places.resize(places.size() + static_cast<size_t>(keys), 0);
    end_sequence(keys);
  }
};

PackedPasses::PackedPasses(LanguageModel& model, const PagedKeys& pages, int64_t page_size, int64_t chunk, bool record)
    : model_(model),
      pages_(pages),
      page_size_(page_size),
      chunk_(chunk),
      most_tokens_(std::max(kPassTokens, chunk)),
      // The host reads which experts have tokens.
      records_(record && model.device().is_cuda() && model.config().mlp.kind != MlpKind::experts),
      recorder_(ops::make_recorder(model.device())) {}

// The chunks end to end, those of a prompt as one sequence: a row of attention has the same bits either way, because
// chunks begin at multiples of the 16 rows of a warp's product. Behind a prompt's keys come as many of place 0, without
// queries, as fill a tile: a kernel multiplies what lies behind the keys in their last tile by zero, and a NaN of
// another request times zero is a NaN.
PackedPasses::Layout PackedPasses::lay_out(std::span<const Part> parts) const {
  Layout out;
  for (size_t n = 0, next = 0; n < parts.size(); n = next) {
    const Part& first = parts[n];
    while (next < parts.size() && parts[next].pages.data() == first.pages.data()) ++next;
    const int64_t end = std::min(parts[next - 1].computed + chunk_, static_cast<int64_t>(first.ids.size()));
    for (int64_t at = 0; at < end; ++at) {
      out.places.push_back(first.pages[static_cast<size_t>(at / page_size_)] * page_size_ + at % page_size_);
      if (at < first.computed) continue;
      out.ids.push_back(first.ids[static_cast<size_t>(at)]);
      out.positions.push_back(at);
      out.slots.push_back(out.places.back());
    }
    out.end_sequence(end);
    if (const int64_t rest = -end & (kKeyTile - 1); rest > 0 && model_.device().is_cuda()) out.add_keys(rest);
    out.longest = std::max(out.longest, end);
  }
  return out;
}

// To a GPU's shape: tokens in sequences of a chunk at most, then keys, then empty sequences.
PackedPasses::Shape PackedPasses::pad(Layout& layout) const {
  for (auto at = static_cast<int64_t>(layout.ids.size()); at < most_tokens_; at += chunk_) {
    const int64_t count = std::min(chunk_, most_tokens_ - at);
    for (auto* numbers : {&layout.ids, &layout.positions, &layout.slots})
      numbers->resize(numbers->size() + static_cast<size_t>(count), 0);
    layout.add_keys(count);
  }
  const auto keys = static_cast<int64_t>(layout.places.size());
  if (padded(keys) > keys) layout.add_keys(padded(keys) - keys);
  const int64_t sequences = power_above(std::max(static_cast<int64_t>(layout.ends_q.size()) - 1, kLeastSequences));
  while (static_cast<int64_t>(layout.ends_q.size()) <= sequences) layout.end_sequence(0);
  layout.longest = power_above(std::max(layout.longest, most_tokens_));
  const ModelConfig& c = model_.config();
  if (c.positions.kind == PositionKind::learned) layout.longest = std::min(layout.longest, c.max_length);
  return {sequences, padded(keys), layout.longest};
}

at::Tensor PackedPasses::on_host(int64_t size, at::ScalarType type) const {
  return at::empty({size}, at::TensorOptions().dtype(type).pinned_memory(model_.device().is_cuda()));
}

at::Tensor PackedPasses::forward(const at::Tensor& ids, PagedKeys paged) const {
  paged.keys = pages_.keys;
  paged.values = pages_.values;
  return model_.forward(ids.unsqueeze(0), {.paged = &paged}).hidden[0];
}

at::Tensor PackedPasses::run_once(const Layout& layout) const {
  const auto host = [&](const auto& numbers) {
    using T = std::decay_t<decltype(numbers[0])>;
    const at::Tensor out = on_host(static_cast<int64_t>(numbers.size()), sizeof(T) == 4 ? at::kInt : at::kLong);
    std::copy(numbers.begin(), numbers.end(), out.template mutable_data_ptr<T>());
    return out;
  };
  const auto sent = [&](const auto& numbers) { return host(numbers).to(model_.device(), /*non_blocking=*/true); };
  PagedKeys paged;
  paged.longest = layout.longest;
  paged.positions = sent(layout.positions).unsqueeze(0);
  paged.slots = sent(layout.slots);
  paged.places = sent(layout.places);
  paged.cu_seqlens_q = host(layout.ends_q);  // checked without waiting, then copied
  paged.cu_seqlens_k = host(layout.ends_k);
  return forward(sent(layout.ids), paged);
}

void PackedPasses::run_recorded(const Layout& layout, const Shape& shape, Recorded& recorded) {
  const int64_t ends = shape.sequences + 1;
  const int64_t size = 3 * most_tokens_ + shape.keys + ends;
  const at::Tensor host = on_host(size, at::kLong);
  int64_t* to = host.mutable_data_ptr<int64_t>();
  for (const auto* numbers : {&layout.ids, &layout.positions, &layout.slots, &layout.places})
    to = std::copy(numbers->begin(), numbers->end(), to);
  auto* to_ends = reinterpret_cast<int32_t*>(to);
  for (const auto* numbers : {&layout.ends_q, &layout.ends_k})
    to_ends = std::copy(numbers->begin(), numbers->end(), to_ends);
  const bool first = !recorded.input.defined();
  const at::TensorOptions numbers = at::TensorOptions().dtype(at::kLong).device(model_.device());
  if (first) recorded.input = at::empty({size}, numbers);
  recorded.input.copy_(host, /*non_blocking=*/true);
  if (!first) return recorded.replay();

  if (!hidden_.defined()) {
    hidden_ = at::empty({most_tokens_, model_.config().hidden_size}, numbers.dtype(model_.compute_dtype()));
  }
  int64_t begin = 0;
  const auto next = [&](int64_t count) {
    begin += count;
    return recorded.input.narrow(0, begin - count, count);
  };
  PagedKeys paged;
  paged.longest = shape.longest;
  const at::Tensor ids = next(most_tokens_);
  paged.positions = next(most_tokens_).unsqueeze(0);
  paged.slots = next(most_tokens_);
  paged.places = next(shape.keys);
  const at::Tensor both = next(ends).view(at::kInt);
  paged.cu_seqlens_q = both.narrow(0, 0, ends);
  paged.cu_seqlens_k = both.narrow(0, ends, ends);
  const auto work = [&] { hidden_.copy_(forward(ids, paged)); };
  work();  // checks the same cu_seqlens, which a recorded pass cannot
  try {
    recorded.replay = recorder_->record(work);
  } catch (const std::exception& error) {  // memory, most likely: the pass itself has run
    records_ = false;
    log::warn("serve: passes over prompts are not recorded: {}", error.what());
  }
}

at::Tensor PackedPasses::run(std::span<const Part> parts) {
  Layout layout = lay_out(parts);
  if (!model_.device().is_cuda()) return run_once(layout);
  const Shape shape = pad(layout);
  const auto known = recorded_.find(shape);
  if (!records_ || (known == recorded_.end() && recorded_.size() == kMostRecorded)) return run_once(layout);
  if (known == recorded_.end()) {
    recorded_.emplace(shape, Recorded{});
    return run_once(layout);
  }
  try {
    run_recorded(layout, shape, known->second);
  } catch (...) {  // a first one is tried again
    if (!known->second.replay) known->second.input = at::Tensor();
    throw;
  }
  return hidden_;
}

}  // namespace lazy
