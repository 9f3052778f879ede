#include "eval/score.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>

#include "core/error.h"
#include "core/progress.h"
#include "core/stop.h"
#include "distributed/communicator.h"
#include "eval/batch.h"
#include "model/kv_cache.h"
#include "model/language_model.h"

namespace lazy::eval {

namespace {

// Maximum number of tokens per batch on a CPU and on a GPU. These batches fully use the device; larger batches would
// only need more memory.
constexpr int64_t kTokensCpu = 2048, kTokensCuda = 32768;

void check(const Window& w, int64_t vocabulary) {
  if (w.targets.empty() || w.input.size() < w.targets.size()) {
    fail("eval", "window: expected 1 to {} targets, found {}", w.input.size(), w.targets.size());
  }
  for (const auto* ids : {&w.input, &w.targets}) {
    for (int32_t id : *ids) {
      if (id < 0 || id >= vocabulary)
        fail("eval", "token id {}: expected 0 to {} (the vocabulary of the model)", id, vocabulary - 1);
    }
  }
}

// Returns the end of the batch of groups that starts at `begin`. A batch has at least one group. `padded`: every window
// is padded to the longest window of the batch.
size_t batch_end(const std::vector<PrefixGroup>& groups, size_t begin, size_t last, int64_t batch_size,
                 int64_t max_tokens, bool padded) {
  size_t end = begin;
  auto windows = int64_t{0}, tokens = int64_t{0}, longest = int64_t{0};
  for (; end < last; ++end) {
    windows += static_cast<int64_t>(groups[end].count);
    longest = std::max(longest, groups[end].computed);
    tokens = padded ? windows * longest : tokens + groups[end].computed;
    if (end > begin && (batch_size > 0 ? windows > batch_size : tokens > max_tokens)) break;
  }
  return end;
}

// A batch that is being computed. On a GPU, the results are copied to the host on the stream of the kernels, and an
// event is recorded after the copy. Waiting for this event does not wait for the next batch, which is computed
// meanwhile.
struct InFlightBatch {
  Batch batch;
  at::Tensor log_likelihood, greedy;
  std::optional<c10::Event> copied;

  InFlightBatch(Batch b, const at::Tensor& values, const at::Tensor& best) : batch(std::move(b)) {
    const at::Device device = values.device();
    log_likelihood = values.contiguous().to(at::kCPU, /*non_blocking=*/true);
    greedy = best.contiguous().to(at::kCPU, /*non_blocking=*/true);
    if (device.is_cpu()) return;
    copied.emplace(device.type());
    copied->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }

  void collect(std::vector<Score>& scores, bool targets) const {
    if (copied) copied->synchronize();
    const float* value = log_likelihood.const_data_ptr<float>();
    const bool* is_best = greedy.const_data_ptr<bool>();
    for (size_t n = 0; n + 1 < batch.begins.size(); ++n) {
      Score& score = scores[batch.first + n];
      for (int64_t row = batch.begins[n]; row < batch.begins[n + 1]; ++row) {
        score.log_likelihood += value[row];
        score.greedy = score.greedy && is_best[row];
        if (targets) score.targets.push_back({value[row], is_best[row]});
      }
    }
  }
};

// Returns the range of groups that a rank computes. The token counts of two ranks differ by at most one group.
std::pair<size_t, size_t> share_of(const std::vector<PrefixGroup>& groups, uint64_t tokens,
                                   const distributed::Communicator* ranks) {
  if (!ranks) return {0, groups.size()};
  const auto begin_of = [&](int rank) {
    const uint64_t before = tokens * static_cast<uint64_t>(rank) / static_cast<uint64_t>(ranks->size());
    size_t group = 0;
    for (uint64_t sum = 0; group < groups.size() && sum < before; ++group)
      sum += static_cast<uint64_t>(groups[group].computed);
    return group;
  };
  return {begin_of(ranks->rank()), ranks->rank() + 1 == ranks->size() ? groups.size() : begin_of(ranks->rank() + 1)};
}

// All-reduces the scores. The score of a window is zero on every rank except the rank that computed it.
void all_reduce_scores(std::vector<Score>& scores, const std::vector<Window>& windows, size_t begin, size_t end,
                       bool targets, distributed::Communicator& ranks) {
  std::vector<double> all;
  for (size_t i = 0; i < scores.size(); ++i) {
    const Score& s = scores[i];
    const bool ours = i >= begin && i < end;
    all.insert(all.end(), {ours ? s.log_likelihood : 0, ours && s.greedy ? 1. : 0.});
    if (!targets) continue;
    for (size_t t = 0; t < windows[i].targets.size(); ++t) {
      const TargetScore target = ours ? s.targets[t] : TargetScore{};
      all.insert(all.end(), {target.log_likelihood, target.greedy ? 1. : 0.});
    }
  }
  all = ranks.sum(all);
  const double* next = all.data();
  for (size_t i = 0; i < scores.size(); ++i, next += 2) {
    scores[i] = {next[0], next[1] != 0, {}};
    if (!targets) continue;
    for (size_t t = 0; t < windows[i].targets.size(); ++t, next += 2) {
      scores[i].targets.push_back({static_cast<float>(next[2]), next[3] != 0});
    }
  }
}

InFlightBatch launch_batch(LanguageModel& model, const std::vector<Window>& windows,
                           std::span<const PrefixGroup> groups) {
  Batch batch = pack(windows, groups, model.device());
  auto [likelihood, best] = model.log_likelihood(batch.tokens, batch.rows, batch.labels);
  return InFlightBatch(std::move(batch), likelihood, best);
}

// Scores windows begin ... end - 1 through a streaming cache, as the rows of one padded batch. Evictions depend only on
// the position of a token, so all rows evict keys at the same step. Padding is at the right end, so scored tokens do
// not attend to it.
InFlightBatch launch_streaming_batch(LanguageModel& model, const std::vector<Window>& windows, size_t begin, size_t end,
                                     const StreamingCache& streaming) {
  int64_t longest = 0;
  for (size_t w = begin; w < end; ++w) longest = std::max(longest, static_cast<int64_t>(windows[w].input.size()));
  const auto count = static_cast<int64_t>(end - begin);
  at::Tensor ids = at::zeros({count, longest}, at::kLong), labels = at::full({count, longest}, -100, at::kLong);
  std::vector<int64_t> rows;
  Batch batch;
  batch.first = begin;
  batch.begins.push_back(0);
  for (size_t w = begin; w < end; ++w) {
    const Window& window = windows[w];
    int64_t* id = ids.mutable_data_ptr<int64_t>() + static_cast<int64_t>(w - begin) * longest;
    int64_t* label = labels.mutable_data_ptr<int64_t>() + static_cast<int64_t>(w - begin) * longest;
    std::copy(window.input.begin(), window.input.end(), id);
    const size_t first = window.input.size() - window.targets.size();
    std::copy(window.targets.begin(), window.targets.end(), label + first);
    for (size_t t = first; t < window.input.size(); ++t)
      rows.push_back(label - labels.const_data_ptr<int64_t>() + static_cast<int64_t>(t));
    batch.begins.push_back(static_cast<int64_t>(rows.size()));
  }
  const at::Device device = model.device();
  KVCache cache{.streaming = streaming};
  const auto [likelihood, best] = model.log_likelihood(ids.to(device), labels.to(device), {.cache = &cache});
  batch.rows = at::tensor(rows).to(device);
  const at::Tensor scored = batch.rows;
  return InFlightBatch(std::move(batch), likelihood.flatten().index_select(0, scored),
                       best.flatten().index_select(0, scored));
}

// Returns whether the RoPE factors differ between the windows.
bool rope_varies_in(const std::vector<Window>& windows, const ModelConfig& config) {
  size_t longest = 0;
  for (const Window& window : windows) longest = std::max(longest, window.input.size());
  return rope_varies(config, static_cast<int64_t>(longest));
}

std::vector<Score> score_in_order(LanguageModel& model, const std::vector<Window>& windows,
                                  const ScoreOptions& options) {
  // With dynamic RoPE scaling, the RoPE factors depend on the length of the sequence, so each batch has one sequence.
  const bool alone = model.config().positions.rope_scaling.type == "dynamic" && rope_varies_in(windows, model.config());
  // A streaming cache belongs to one sequence, so prefixes cannot be shared.
  const bool apart = alone || options.cache || !options.share_prefixes;
  const std::vector<PrefixGroup> groups = apart                            ? group_singly(windows)
                                          : model.config().all_attention() ? group_by_prefix(windows)
                                                                           : group_contained(windows);
  int64_t max_tokens = model.device().is_cuda() ? kTokensCuda : kTokensCpu;
  uint64_t all = 0, done = 0;
  for (const PrefixGroup& group : groups) all += static_cast<uint64_t>(group.computed);
  const auto [first, last] = share_of(groups, all, options.ranks);
  if (options.ranks) {
    all = 0;
    for (size_t i = first; i < last; ++i) all += static_cast<uint64_t>(groups[i].computed);
  }
  std::unique_ptr<Progress> progress;
  if (!options.title.empty() && all > 0 && (!options.ranks || options.ranks->is_rank0()))
    progress = std::make_unique<Progress>(options.title, all, "tokens");

  std::vector<Score> scores(windows.size());
  std::optional<InFlightBatch> in_flight;
  for (size_t begin = first; begin < last;) {
    end_if_stopped("eval");
    const size_t end =
        alone ? begin + 1 : batch_end(groups, begin, last, options.batch_size, max_tokens, options.cache.has_value());
    try {
      InFlightBatch next = options.cache ? launch_streaming_batch(model, windows, begin, end, *options.cache)
                                         : launch_batch(model, windows, std::span(groups).subspan(begin, end - begin));
      if (in_flight) in_flight->collect(scores, options.targets);
      in_flight = std::move(next);
    } catch (const c10::OutOfMemoryError&) {
      // Memory is exhausted: halve the batch, unless the user has set its size or it consists of only one group.
      if (options.batch_size > 0 || end == begin + 1) throw;
      max_tokens = std::max<int64_t>(1, max_tokens / 2);
      continue;
    }
    for (; begin < end; ++begin) done += static_cast<uint64_t>(groups[begin].computed);
    if (progress) progress->update(done);
  }
  if (in_flight) in_flight->collect(scores, options.targets);
  if (progress) progress->finish();
  if (options.ranks && options.ranks->size() > 1 && !windows.empty()) {
    const size_t end = last < groups.size() ? groups[last].first : windows.size();
    all_reduce_scores(scores, windows, first < groups.size() ? groups[first].first : windows.size(), end,
                      options.targets, *options.ranks);
  }
  return scores;
}

// Scores windows[order[0]], windows[order[1]], ... and stores each result at the index of the window in `scores`.
void score_subset(LanguageModel& model, const std::vector<Window>& windows, const std::vector<size_t>& order,
                  const ScoreOptions& options, std::vector<Score>& scores) {
  std::vector<Window> subset;
  for (size_t w : order) subset.push_back(windows[w]);
  std::vector<Score> found = score_in_order(model, subset, options);
  for (size_t n = 0; n < order.size(); ++n) scores[order[n]] = std::move(found[n]);
}

// Scores the windows in descending order of length. This is for mixers that pad packed sequences to a common length,
// because batches of similar lengths need less padding. If memory is too small, the longest sequences fail first.
std::vector<Score> score_by_length(LanguageModel& model, const std::vector<Window>& windows,
                                   const ScoreOptions& options) {
  std::vector<size_t> order(windows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return windows[a].input.size() > windows[b].input.size(); });
  std::vector<Score> scores(windows.size());
  score_subset(model, windows, order, options, scores);
  return scores;
}

// Scores windows through a streaming KV cache. Sequences that fit into the cache evict no keys, so they are scored
// without it. The other sequences are sorted by length to reduce padding.
std::vector<Score> score_streaming(LanguageModel& model, const std::vector<Window>& windows,
                                   const ScoreOptions& options) {
  std::vector<size_t> fitting, evicting;
  for (size_t w = 0; w < windows.size(); ++w) {
    (static_cast<int64_t>(windows[w].input.size()) <= options.cache->size() + 1 ? fitting : evicting).push_back(w);
  }
  std::stable_sort(evicting.begin(), evicting.end(),
                   [&](size_t a, size_t b) { return windows[a].input.size() < windows[b].input.size(); });
  std::vector<Score> scores(windows.size());
  for (const auto* part : {&fitting, &evicting}) {
    ScoreOptions o = options;
    if (part == &fitting) o.cache.reset();
    score_subset(model, windows, *part, o, scores);
  }
  return scores;
}

// Scores windows of a model with LongRoPE, which has one set of RoPE factors for sequences up to its original length
// and another set for longer sequences. A batch can only use one set, so the two kinds of sequences are scored
// separately.
std::vector<Score> score_longrope(LanguageModel& model, const std::vector<Window>& windows,
                                  const ScoreOptions& options) {
  const auto original = static_cast<size_t>(model.config().positions.rope_scaling.original_length);
  std::vector<size_t> shorter, longer;
  for (size_t w = 0; w < windows.size(); ++w) (windows[w].input.size() <= original ? shorter : longer).push_back(w);
  std::vector<Score> scores(windows.size());
  for (const auto* part : {&shorter, &longer}) score_subset(model, windows, *part, options, scores);
  return scores;
}

}  // namespace

std::vector<Score> score(LanguageModel& model, const std::vector<Window>& windows, const ScoreOptions& options) {
  const at::NoGradGuard no_grad;
  const ModelConfig& config = model.config();
  for (const Window& w : windows) check(w, config.vocab_size);
  // score_streaming() scores short windows without the cache. This is not possible if the RoPE factors depend on the
  // length: a streaming cache uses its size as the length for all sequences, so all windows must be scored through it.
  if (options.cache && !rope_varies(config, options.cache->size() + 1)) return score_streaming(model, windows, options);
  if (!options.cache && config.positions.rope_scaling.type == "longrope" && rope_varies_in(windows, config))
    return score_longrope(model, windows, options);
  return config.all_attention() ? score_in_order(model, windows, options) : score_by_length(model, windows, options);
}

std::vector<Score> score(LanguageModel& model, const std::vector<Request>& requests, int64_t max_length,
                         const ScoreOptions& options) {
  std::vector<Window> windows;
  for (const Request& request : requests) windows.push_back(window_of(request, max_length));
  return score(model, windows, options);
}

Scorer make_scorer(std::shared_ptr<LanguageModel> model, ScoreOptions options, bool progress) {
  return [=](const std::vector<Window>& windows, const std::string& title) {
    ScoreOptions now = options;
    now.title = progress ? title : "";
    now.targets = true;
    return score(*model, windows, now);
  };
}

}  // namespace lazy::eval
