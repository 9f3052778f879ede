#include "serve/prefill_runner.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "model/blocks/host_tensor.h"
#include "model/forward_options.h"
#include "model/recorded_work.h"
#include "ops/kv_cache_write.h"
#include "ops/pinned_copy.h"
#include "serve/padded_sizes.h"

namespace lazy {

namespace {

constexpr int64_t kPassTokens = 4096;  // number of tokens per pass on a GPU, enough to use the GPU fully
constexpr int64_t kKeyTile = 128;      // maximum number of keys per tile of a GPU attention kernel
constexpr int64_t kMinSequences = 32;  // a captured pass is padded to at least this number of sequences
constexpr size_t kMaxRecorded = 64;    // maximum number of captured shapes

}  // namespace

struct PrefillRunner::Layout {
  std::vector<int64_t> ids, positions, slots, sources;
  std::vector<int64_t> rows;  // indices of the tokens whose hidden states are returned; empty: all
  std::vector<int32_t> ends_q{0}, ends_k{0};
  int64_t longest = 1;

  // Marks the end of a sequence that has `keys` keys. The queries of the sequence must have been appended before.
  void end_sequence(int64_t keys) {
    ends_q.push_back(static_cast<int32_t>(positions.size()));
    ends_k.push_back(static_cast<int32_t>(ends_k.back() + keys));
  }
  // Appends `keys` zero keys as the keys of one sequence and marks the end of this sequence. The queries of the
  // sequence, if any, must have been appended before.
  void add_zeros(int64_t keys) {
    sources.resize(sources.size() + static_cast<size_t>(keys), ops::kZeros);
    end_sequence(keys);
  }
};

PrefillRunner::PrefillRunner(LanguageModel& model, const PagedKeys& pages, int64_t page_size, int64_t chunk,
                             bool record)
    : model_(model),
      pages_(pages),
      page_size_(page_size),
      chunk_(chunk),
      most_tokens_(std::max(kPassTokens, chunk)),
      // Passes of mixture-of-experts models are not captured as CUDA graphs, because the host must read which experts
      // received tokens before it can launch the kernels of these experts.
      records_(record && model.device().is_cuda() && model.config().mlp.kind != MlpKind::experts),
      recorder_(ops::make_recorder(model.device())) {}

// Concatenates the chunks of each prompt into one sequence, and all sequences into one batch. Concatenation does not
// change the attention output of a token bitwise: a warp computes matrix products of 16 rows (tokens), and each chunk
// begins at a multiple of 16 rows. On a GPU, zero keys are inserted after the keys of each prompt, up to the end of the
// last tile of keys. Without them, the tile could also contain values of another request. The attention kernel
// multiplies these values by zero, but the product would be NaN if a value were NaN.
PrefillRunner::Layout PrefillRunner::lay_out(std::span<const PromptPart> parts, bool last_tokens_only) const {
  Layout out;
  for (size_t n = 0, next = 0; n < parts.size(); n = next) {
    const PromptPart& first = parts[n];
    while (next < parts.size() && parts[next].pages.data() == first.pages.data()) ++next;
    const int64_t end = std::min(parts[next - 1].computed + chunk_, static_cast<int64_t>(first.ids.size()));
    for (int64_t at = 0; at < end; ++at) {
      const int64_t place = first.pages[static_cast<size_t>(at / page_size_)] * page_size_ + at % page_size_;
      if (at < first.computed) {
        out.sources.push_back(ops::in_pages(place));
        continue;
      }
      out.sources.push_back(static_cast<int64_t>(out.ids.size()));
      out.ids.push_back(first.ids[static_cast<size_t>(at)]);
      out.positions.push_back(at);
      out.slots.push_back(place);
    }
    if (last_tokens_only && end == static_cast<int64_t>(first.ids.size())) out.rows.push_back(out.sources.back());
    out.end_sequence(end);
    if (const int64_t rest = -end & (kKeyTile - 1); rest > 0 && model_.device().is_cuda()) out.add_zeros(rest);
    out.longest = std::max(out.longest, end);
  }
  // The number of rows is padded to a constant, so that the matrix products compute a row with the same rounding in
  // every pass.
  if (last_tokens_only) out.rows.resize(static_cast<size_t>(kMaxLogitRows), 0);
  return out;
}

// Pads the layout to one of a few shapes, for which CUDA graphs are captured. First adds padding tokens in sequences of
// at most one chunk, then zero keys, then empty sequences.
PrefillRunner::Shape PrefillRunner::pad(Layout& layout) const {
  for (auto at = static_cast<int64_t>(layout.ids.size()); at < most_tokens_; at += chunk_) {
    const int64_t count = std::min(chunk_, most_tokens_ - at);
    for (auto* numbers : {&layout.ids, &layout.positions, &layout.slots})
      numbers->resize(numbers->size() + static_cast<size_t>(count), 0);
    layout.add_zeros(count);
  }
  const auto real = static_cast<int64_t>(layout.sources.size()), keys = quarter_above(real, kKeyTile);
  if (keys > real) layout.add_zeros(keys - real);
  const int64_t sequences = power_above(std::max(static_cast<int64_t>(layout.ends_q.size()) - 1, kMinSequences));
  while (static_cast<int64_t>(layout.ends_q.size()) <= sequences) layout.end_sequence(0);
  layout.longest = power_above(std::max(layout.longest, most_tokens_));
  const ModelConfig& c = model_.config();
  if (c.positions.kind == PositionKind::learned) layout.longest = std::min(layout.longest, c.max_length);
  return {sequences, keys, layout.longest, !layout.rows.empty()};
}

at::Tensor PrefillRunner::forward(const at::Tensor& ids, PagedKeys paged, const at::Tensor& rows) const {
  paged.keys = pages_.keys;
  paged.values = pages_.values;
  return model_.forward(ids.unsqueeze(0), {.paged = &paged, .rows = rows}).hidden[0];
}

at::Tensor PrefillRunner::run_once(const Layout& layout) const {
  const at::Device device = model_.device();
  PagedKeys paged;
  paged.longest = layout.longest;
  paged.positions = on_device(layout.positions, device).unsqueeze(0);
  paged.slots = on_device(layout.slots, device);
  paged.sources = on_device(layout.sources, device);
  paged.cu_seqlens_q = on_host(layout.ends_q, at::kInt, device);  // the lengths are checked on the host and then copied
  paged.cu_seqlens_k = on_host(layout.ends_k, at::kInt, device);
  const at::Tensor rows = layout.rows.empty() ? at::Tensor() : on_device(layout.rows, device);
  return forward(on_device(layout.ids, device), paged, rows);
}

void PrefillRunner::run_recorded(const Layout& layout, const Shape& shape, Recorded& recorded) {
  const at::Device device = model_.device();
  std::vector<int64_t> numbers;
  for (const auto* some : {&layout.ids, &layout.positions, &layout.slots, &layout.sources, &layout.rows})
    numbers.insert(numbers.end(), some->begin(), some->end());
  std::vector<int32_t> offsets = layout.ends_q;
  offsets.insert(offsets.end(), layout.ends_k.begin(), layout.ends_k.end());
  const auto send = [&](at::Tensor& to, const at::Tensor& from) {
    if (!to.defined()) to = at::empty(from.sizes(), from.options().device(device).pinned_memory(false));
    ops::pinned_copy(to, from);
  };
  send(recorded.numbers, on_host(numbers, at::kLong, device));
  send(recorded.offsets, on_host(offsets, at::kInt, device));
  if (recorded.replay) return recorded.replay();

  if (!hidden_.defined()) {
    const at::TensorOptions options = at::TensorOptions().dtype(model_.compute_dtype()).device(device);
    hidden_ = at::empty({most_tokens_, model_.config().hidden_size}, options);
  }
  int64_t begin = 0;
  const auto next = [&](int64_t count) {
    begin += count;
    return recorded.numbers.narrow(0, begin - count, count);
  };
  const at::Tensor ids = next(most_tokens_);
  PagedKeys paged;
  paged.longest = shape.longest;
  paged.positions = next(most_tokens_).unsqueeze(0);
  paged.slots = next(most_tokens_);
  paged.sources = next(shape.keys);
  const at::Tensor rows = shape.last_tokens_only ? next(kMaxLogitRows) : at::Tensor();
  const at::Tensor hidden = shape.last_tokens_only ? hidden_.narrow(0, 0, kMaxLogitRows) : hidden_;
  const std::vector<at::Tensor> cu_seqlens = recorded.offsets.chunk(2);
  paged.cu_seqlens_q = cu_seqlens[0];
  paged.cu_seqlens_k = cu_seqlens[1];
  const auto work = [this, ids, paged, rows, hidden] { hidden.copy_(forward(ids, paged, rows)); };
  work();  // runs this pass without capture; the check of cu_seqlens would be impossible during the capture
  recorded.replay = record_or_warn(*recorder_, work, "serve: prefill passes");
  if (!recorded.replay) records_ = false;  // the capture has failed, but work() has already run the pass
}

at::Tensor PrefillRunner::run(std::span<const PromptPart> parts, bool last_tokens_only) {
  Layout layout = lay_out(parts, last_tokens_only);
  if (!model_.device().is_cuda()) return run_once(layout);
  const Shape shape = pad(layout);
  const auto known = recorded_.find(shape);
  if (known != recorded_.end() && records_) {
    run_recorded(layout, shape, known->second);
    return hidden_;
  }
  if (records_ && recorded_.size() < kMaxRecorded) recorded_.emplace(shape, Recorded{});
  return run_once(layout);
}

}  // namespace lazy
