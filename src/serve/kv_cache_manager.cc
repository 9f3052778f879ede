#include "serve/kv_cache_manager.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "core/error.h"
#include "model/context_length.h"
#include "model/forward_options.h"
#include "model/graphed_state_runner.h"
#include "model/kv_cache.h"
#include "model/paged_keys.h"
#include "ops/skinny_gemm.h"
#include "serve/decode_runner.h"
#include "serve/engine.h"
#include "serve/page_pool.h"
#include "serve/prefill_runner.h"

namespace lazy {

namespace {

std::span<const int64_t> chunk_of(std::span<const int64_t> ids, int64_t computed, int64_t chunk) {
  return ids.subspan(static_cast<size_t>(computed),
                     std::min(ids.size() - static_cast<size_t>(computed), static_cast<size_t>(chunk)));
}

class PagedStore : public KvCacheManager {
 public:
  PagedStore(LanguageModel& model, const EngineOptions& options)
      : model_(model),
        rows_(options.rows),
        pool_(1 + options.cache_bytes / page_bytes(model.config(), options.page_tokens, model.compute_dtype()),
              options.page_tokens, options.chunk),
        paged_(make_paged_keys(model.config(), pool_.pages() + 1, options.page_tokens, model.compute_dtype(),
                               model.device(), longest_request(model.config(), options))) {
    if (!options.decode_runner.value_or(model.device().is_cuda())) return;
    decode_runner_ =
        std::make_unique<DecodeRunner>(model, paged_, options.page_tokens, options.max_running, options.record_steps);
    prefill_runner_ =
        std::make_unique<PrefillRunner>(model, paged_, options.page_tokens, options.chunk, options.record_steps);
  }

  int64_t max_tokens() const override { return pool_.pages() * pool_.page_size(); }

  std::unique_ptr<Memory> admit(int64_t tokens) override {
    auto pages = pool_.take(pages_for(tokens));
    return pages ? std::make_unique<Pages>(pool_, std::move(*pages)) : nullptr;
  }

  bool grow(Memory& memory, int64_t tokens) override {
    auto& pages = static_cast<Pages&>(memory);
    const int64_t more = pages_for(tokens) - static_cast<int64_t>(pages.table().size());
    if (more <= 0) return true;
    const auto taken = pool_.take(more);
    if (taken) pages.append(*taken);
    return taken.has_value();
  }

  bool can_admit(int64_t tokens, std::span<const Memory* const> freed) const override {
    int64_t available = pool_.free() + pool_.unused();
    std::unordered_map<const PagePool::Chunk*, int64_t> users;
    for (const Memory* memory : freed) {
      const auto& pages = static_cast<const Pages&>(*memory);
      available += pages.own_size();
      for (const PagePool::Chunk* chunk : pages.chunks()) {
        if (++users[chunk] == chunk->users) available += static_cast<int64_t>(chunk->pages.size());
      }
    }
    return pages_for(tokens) <= available;
  }

  int64_t reuse(Memory& memory, std::span<const int64_t> ids, int64_t computed) override {
    auto& pages = static_cast<Pages&>(memory);
    int64_t found = 0;
    for (int64_t at = computed; at + pool_.chunk() < static_cast<int64_t>(ids.size()); at += pool_.chunk()) {
      if (at != pages.shared_tokens()) break;  // a shared chunk must directly follow the preceding shared chunk
      PagePool::Chunk* chunk = pool_.find(pages.last(), chunk_of(ids, at, pool_.chunk()));
      if (!chunk) break;
      pool_.give_back(pages.own_of(chunk->pages.size()));
      pages.share(chunk);
      found += pool_.chunk();
    }
    return found;
  }

  PassSize pass_size() const override {
    if (prefill_runner_) return {SIZE_MAX, prefill_runner_->most_tokens(), PrefillRunner::kMaxLogitRows};
    return {1, pool_.chunk(), 1};
  }

  std::vector<Extended> extend(std::span<const PromptPart> parts, bool last_tokens_only) override {
    last_tokens_only = last_tokens_only && prefill_runner_;
    const at::Tensor hidden = prefill_runner_ ? packed_pass(parts, last_tokens_only) : whole_pass(parts[0]);
    std::vector<Extended> out;
    int64_t row = 0;
    for (const PromptPart& part : parts) {
      const std::span<const int64_t> chunk = chunk_of(part.ids, part.computed, pool_.chunk());
      const auto count = static_cast<int64_t>(chunk.size());
      const bool at_end = part.computed + count == static_cast<int64_t>(part.ids.size());
      const int64_t rows = !last_tokens_only ? count : at_end ? 1 : 0;
      out.push_back({count, hidden.narrow(0, row, rows)});
      row += rows;
      auto& pages = static_cast<Pages&>(*part.memory);
      if (count != pool_.chunk() || part.computed != pages.shared_tokens()) continue;
      const std::span<const int64_t> own = pages.own_of(static_cast<size_t>(count / pool_.page_size()));
      if (PagePool::Chunk* kept = pool_.keep(pages.last(), chunk, own)) pages.share(kept);
    }
    return out;
  }

  at::Tensor step(std::span<const SequenceStep> steps) override {
    std::vector<at::Tensor> logits;
    for (size_t begin = 0; begin < steps.size(); begin += static_cast<size_t>(rows_)) {
      const std::span<const SequenceStep> some =
          steps.subspan(begin, std::min(steps.size() - begin, static_cast<size_t>(rows_)));
      // Each sequence is one row of the pass. On a CPU with a small batch, the matrix products compute each row
      // independently of the other rows (ops/skinny_gemm.h). Otherwise, padding rows are added so that all passes have
      // the same number of rows and a result does not depend on the batch size. A padding row computes one token whose
      // keys and values are written to slot 0 of page 0.
      const bool pads = !model_.device().is_cpu() || rows_ > ops::kMaxSkinnyRowsCpu;
      const int64_t rows = pads ? rows_ : static_cast<int64_t>(some.size());
      std::vector<const Pages*> pages(static_cast<size_t>(rows), nullptr);
      const at::Tensor ids = at::zeros({rows}, at::kLong), positions = at::zeros({rows}, at::kLong);
      for (size_t n = 0; n < some.size(); ++n) {
        pages[n] = static_cast<const Pages*>(some[n].memory);
        ids.data_ptr<int64_t>()[n] = some[n].ids.back();
        positions.data_ptr<int64_t>()[n] = static_cast<int64_t>(some[n].ids.size()) - 1;
      }
      const at::Tensor all = model_.logits(pass(pages, ids, positions, 1).squeeze(1));
      logits.push_back(all.narrow(0, 0, static_cast<int64_t>(some.size())));
    }
    return at::cat(logits);
  }

  DecodeRunner* decode_runner() override { return decode_runner_.get(); }
  std::span<const int64_t> pages(const Memory& memory) const override {
    return static_cast<const Pages&>(memory).table();
  }

  void describe(EngineMetrics& metrics) const override {
    metrics.pages = pool_.pages();
    metrics.free_pages = pool_.free();
    metrics.shared_pages = pool_.unused();
  }

 private:
  // The page table of a sequence: first the pages of shared chunks, then the sequence's unshared pages.
  class Pages : public Memory {
   public:
    Pages(PagePool& pool, std::vector<int64_t> own) : pool_(pool), table_(std::move(own)) {}
    ~Pages() override {
      pool_.give_back(own_of(table_.size() - shared_));
      for (auto chunk = chunks_.rbegin(); chunk != chunks_.rend(); ++chunk) pool_.leave(*chunk);
    }
    const std::vector<int64_t>& table() const { return table_; }
    const std::vector<PagePool::Chunk*>& chunks() const { return chunks_; }
    int64_t own_size() const { return static_cast<int64_t>(table_.size() - shared_); }
    void append(std::span<const int64_t> pages) { table_.insert(table_.end(), pages.begin(), pages.end()); }
    PagePool::Chunk* last() const { return chunks_.empty() ? nullptr : chunks_.back(); }
    int64_t shared_tokens() const { return static_cast<int64_t>(shared_) * pool_.page_size(); }
    std::span<const int64_t> own_of(size_t count) const { return std::span(table_).subspan(shared_, count); }
    // Replaces the first unshared pages of the table by the pages of `chunk`.
    void share(PagePool::Chunk* chunk) {
      std::copy(chunk->pages.begin(), chunk->pages.end(), table_.begin() + static_cast<std::ptrdiff_t>(shared_));
      shared_ += chunk->pages.size();
      chunks_.push_back(chunk);
    }

   private:
    PagePool& pool_;
    std::vector<int64_t> table_;
    std::vector<PagePool::Chunk*> chunks_;
    size_t shared_ = 0;
  };

  int64_t pages_for(int64_t tokens) const { return (tokens + pool_.page_size() - 1) / pool_.page_size(); }

  at::Tensor packed_pass(std::span<const PromptPart> parts, bool last_tokens_only) {
    std::vector<PrefillRunner::PromptPart> packed;
    for (const PromptPart& part : parts) packed.push_back({pages(*part.memory), part.ids, part.computed});
    return prefill_runner_->run(packed, last_tokens_only);
  }

  at::Tensor whole_pass(const PromptPart& part) {
    const std::span<const int64_t> ids = chunk_of(part.ids, part.computed, pool_.chunk());
    const auto count = static_cast<int64_t>(ids.size());
    return pass({static_cast<const Pages*>(part.memory)},
                at::tensor(at::IntArrayRef(ids.data(), ids.size()), at::kLong),
                at::arange(part.computed, part.computed + count, at::kLong), count)[0];
  }

  // Runs one forward pass over `length` tokens of each sequence. ids and positions have the shape (sequences, length),
  // flattened. A null entry of `sequences` is a padding row.
  at::Tensor pass(const std::vector<const Pages*>& sequences, const at::Tensor& ids, const at::Tensor& positions,
                  int64_t length) {
    const auto batch = static_cast<int64_t>(sequences.size());
    size_t width = 1;
    for (const Pages* pages : sequences) width = std::max(width, pages ? pages->table().size() : 0);
    const at::Tensor table = at::zeros({batch, static_cast<int64_t>(width)}, at::kLong), slots = at::zeros_like(ids),
                     lengths = at::zeros({batch}, at::kLong);
    const int64_t* position = positions.const_data_ptr<int64_t>();
    for (int64_t b = 0; b < batch; ++b) {
      const Pages* pages = sequences[static_cast<size_t>(b)];
      lengths.data_ptr<int64_t>()[b] = position[(b + 1) * length - 1] + 1;
      if (!pages) continue;
      std::copy(pages->table().begin(), pages->table().end(),
                table.data_ptr<int64_t>() + b * static_cast<int64_t>(width));
      for (int64_t n = b * length; n < (b + 1) * length; ++n) {
        const auto page = static_cast<size_t>(position[n] / pool_.page_size());
        slots.data_ptr<int64_t>()[n] = pages->table().at(page) * pool_.page_size() + position[n] % pool_.page_size();
      }
    }
    const at::Device device = model_.device();
    paged_.longest = lengths.max().item<int64_t>();
    paged_.block_table = table.to(device);
    paged_.lengths = lengths.to(device);
    paged_.positions = positions.view({batch, length}).to(device);
    paged_.slots = slots.to(device);
    return model_.forward(ids.view({batch, length}).to(device), {.paged = &paged_}).hidden;
  }

  LanguageModel& model_;
  const int64_t rows_;
  PagePool pool_;
  PagedKeys paged_;
  std::unique_ptr<DecodeRunner> decode_runner_;
  std::unique_ptr<PrefillRunner> prefill_runner_;  // set if decode_runner_ is set
};

// Implementation for models without paged keys: one KVCache and one forward pass per sequence.
class SeparateStore : public KvCacheManager {
 public:
  SeparateStore(LanguageModel& model, const EngineOptions& options)
      : model_(model),
        steps_(model, options.record_steps && options.decode_runner.value_or(model.device().is_cuda())),
        streaming_(options.streaming),
        chunk_(options.chunk),
        bytes_(options.cache_bytes),
        left_(bytes_) {
    // Measure state_bytes_, the part of a sequence's memory that does not grow with its length. For this, the model
    // processes enough tokens to fill its segments and its memory, and the sizes of the resulting states are added.
    const ModelConfig& c = model_.config();
    KVCache cache{.streaming = streaming_};
    const int64_t remembered = std::max(c.positions.segment_length + c.positions.memory_length, 2 * c.mixer.segment);
    model_.forward(at::zeros({1, std::max(chunk_, remembered)}, at::kLong).to(model_.device()), {.cache = &cache});
    for (const auto& states : cache.states) {
      for (const at::Tensor& state : states) state_bytes_ += static_cast<int64_t>(state.nbytes());
    }
    for (int64_t layer = 0; layer < c.num_layers; ++layer) {
      if (c.mixer_of(layer) == MixerType::attention) {
        (streaming_ ? state_bytes_ : token_bytes_) += (streaming_ ? streaming_->size() + chunk_ : 1) * 2 *
                                                      c.attention.num_kv_heads * c.attention.head_dim *
                                                      static_cast<int64_t>(c10::elementSize(model_.compute_dtype()));
      }
    }
    if (bytes_ < bytes_of(1))
      fail("serve", "cache size: expected at least {} bytes for one sequence, found {}", bytes_of(1), bytes_);
  }

  int64_t max_tokens() const override {
    if (token_bytes_ == 0) return std::numeric_limits<int64_t>::max();
    return (bytes_ - state_bytes_) / (kGrowth * token_bytes_ * kReservedTokens) * kReservedTokens;
  }

  std::unique_ptr<Memory> admit(int64_t tokens) override {
    const int64_t bytes = bytes_of(tokens);
    if (bytes > left_) return nullptr;
    auto own = std::make_unique<OwnMemory>(*this, bytes);
    own->cache.streaming = streaming_;
    return own;
  }

  bool grow(Memory& memory, int64_t tokens) override {
    auto& own = static_cast<OwnMemory&>(memory);
    const int64_t more = bytes_of(tokens) - own.bytes;
    if (more > left_) return false;
    if (more > 0) own.take(more);
    return true;
  }

  bool can_admit(int64_t tokens, std::span<const Memory* const> freed) const override {
    int64_t available = left_;
    for (const Memory* memory : freed) available += static_cast<const OwnMemory&>(*memory).bytes;
    return bytes_of(tokens) <= available;
  }

  int64_t reuse(Memory&, std::span<const int64_t>, int64_t) override { return 0; }

  PassSize pass_size() const override { return {1, chunk_, 1}; }
  std::vector<Extended> extend(std::span<const PromptPart> parts, bool) override {
    // The rotation (RoPE) of a prompt's keys may depend on the length of the whole prompt, as in transformers. Such a
    // prompt is processed in one pass.
    const bool whole = !streaming_ && rope_varies(model_.config());
    const auto& [memory, ids, computed] = parts[0];
    const at::Tensor hidden = pass(*memory, chunk_of(ids, computed, whole ? static_cast<int64_t>(ids.size()) : chunk_));
    return {{hidden.size(0), hidden}};
  }

  at::Tensor step(std::span<const SequenceStep> steps) override {
    at::Tensor all;
    for (size_t n = 0; n < steps.size(); ++n) {
      const at::Tensor logits = next_logits(steps[n]).flatten();
      if (n == 0) all = at::empty({static_cast<int64_t>(steps.size()), logits.size(0)}, logits.options());
      all[static_cast<int64_t>(n)].copy_(logits);
    }
    return all;
  }

  void describe(EngineMetrics&) const override {}

 private:
  struct OwnMemory : Memory {
    OwnMemory(SeparateStore& store, int64_t bytes) : store(store) { take(bytes); }
    void take(int64_t more) {
      bytes += more;
      store.left_ -= more;
    }
    ~OwnMemory() override {
      store.left_ += bytes;
      store.steps_.forget(cache);
    }
    SeparateStore& store;
    KVCache cache;
    int64_t bytes = 0;  // number of bytes reserved for the sequence
  };
  // A KVCache grows by doubling its capacity. While it copies its content, the old and the new tensors are both in
  // memory; together they have at most 3 times the old size.
  static constexpr int64_t kGrowth = 3;
  static constexpr int64_t kReservedTokens = 256;  // memory is reserved for multiples of this number of tokens

  int64_t bytes_of(int64_t tokens) const {
    const int64_t blocks = std::max<int64_t>(1, (tokens + kReservedTokens - 1) / kReservedTokens);
    return state_bytes_ + kGrowth * token_bytes_ * kReservedTokens * blocks;
  }
  at::Tensor next_logits(const SequenceStep& step) {
    KVCache& cache = static_cast<OwnMemory&>(*step.memory).cache;
    const auto& scaling = model_.config().positions.rope_scaling;
    if (!streaming_ && scaling.type == "longrope" && cache.length == scaling.original_length) {
      // LongRoPE has rotation factors for short and for long texts. From this token on, the factors for long texts
      // apply to all keys, including the keys in the cache, so all keys are recomputed. Phi-3 in transformers does the
      // same.
      steps_.forget(cache);
      cache = {};
      return model_.logits(pass(*step.memory, step.ids).slice(0, -1));
    }
    const auto options = at::TensorOptions(at::kLong).device(model_.device());
    return steps_.logits(at::full({1, 1}, step.ids.back(), options), cache);
  }

  at::Tensor pass(Memory& memory, std::span<const int64_t> ids) {
    const at::Tensor input = at::tensor(at::IntArrayRef(ids.data(), ids.size()), at::kLong).unsqueeze(0);
    return model_.forward(input.to(model_.device()), {.cache = &static_cast<OwnMemory&>(memory).cache}).hidden[0];
  }

  LanguageModel& model_;
  GraphedStateRunner steps_;
  const std::optional<StreamingCache> streaming_;
  const int64_t chunk_;
  const int64_t bytes_;
  int64_t left_, state_bytes_ = 0, token_bytes_ = 0;
};

}  // namespace

int64_t longest_request(const ModelConfig& config, const EngineOptions& options) {
  int64_t limit = options.max_model_len > 0 ? options.max_model_len : context_length(config);
  if (options.max_model_len == 0 && options.streaming) limit = std::numeric_limits<int32_t>::max();
  return config.positions.kind == PositionKind::learned ? std::min(limit, config.max_length) : limit;
}

std::unique_ptr<KvCacheManager> make_kv_cache_manager(LanguageModel& model, const EngineOptions& options) {
  const at::NoGradGuard guard;
  if (!options.streaming && paged_unsupported_reason(model.config(), longest_request(model.config(), options)).empty())
    return std::make_unique<PagedStore>(model, options);
  return std::make_unique<SeparateStore>(model, options);
}

}  // namespace lazy
