// Stores the keys, values and states of the engine's sequences, and runs the model's forward passes on them. There are
// two implementations. The first one uses a paged KV cache and one pass for all sequences. The second one uses one
// KVCache and one pass per sequence; it is for models that do not support paged keys (model/paged_keys.h).
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/language_model.h"

namespace lazy {

class DecodeRunner;
struct EngineOptions;
struct EngineMetrics;

class KvCacheManager {
 public:
  // The memory of one sequence. The destructor frees it.
  struct Memory {
    virtual ~Memory() = default;
  };
  virtual ~KvCacheManager() = default;

  // Maximum length of a sequence, in tokens, if no other sequence uses memory.
  virtual int64_t max_tokens() const = 0;
  // Allocates memory for a sequence of `tokens` tokens. Returns null if not enough memory is free.
  virtual std::unique_ptr<Memory> admit(int64_t tokens) = 0;
  // Extends the memory of a sequence to `tokens` tokens. Returns false and changes nothing if not enough memory is
  // free.
  virtual bool grow(Memory& memory, int64_t tokens) = 0;
  // Whether admit(tokens) would succeed if the memory of all sequences in `freed` were freed first.
  virtual bool can_admit(int64_t tokens, std::span<const Memory* const> freed) const = 0;
  // Returns the number of tokens from index `computed` on that need no computation because an earlier sequence began
  // with the same tokens (prefix caching). `ids` contains all known tokens of the sequence. At least the last token
  // must always be computed.
  virtual int64_t reuse(Memory& memory, std::span<const int64_t> ids, int64_t computed) = 0;
  // Input of extend(): the next chunk of a sequence, which begins at index `computed` of `ids`. Chunks of the same
  // sequence must be adjacent.
  struct PromptPart {
    Memory* memory;
    std::span<const int64_t> ids;
    int64_t computed;
  };
  struct Extended {
    int64_t tokens;
    at::Tensor hidden;  // hidden states (tokens, hidden_size)
  };
  // Runs one pass over all parts. With last_tokens_only, a part that reaches the end of its `ids` may return only the
  // last hidden state, and all other parts may return no hidden state. The rounding of such a pass differs from a pass
  // without last_tokens_only.
  virtual std::vector<Extended> extend(std::span<const PromptPart> parts, bool last_tokens_only) = 0;
  // Upper limits of one pass of extend().
  struct PassSize {
    size_t parts;
    int64_t tokens;
    int64_t ends;  // number of parts that contain the last token of their `ids`
  };
  virtual PassSize pass_size() const = 0;

  struct SequenceStep {
    Memory* memory;
    std::span<const int64_t> ids;  // all tokens of the sequence; the last token is the input of the step
  };
  // Computes one token per sequence. Returns the logits of the next tokens, (sequences, vocab_size) in fp32.
  virtual at::Tensor step(std::span<const SequenceStep> steps) = 0;

  // Returns the object that runs decode steps with sampling on the device, or null if the host samples from the logits
  // of step().
  virtual DecodeRunner* decode_runner() { return nullptr; }
  virtual std::span<const int64_t> pages(const Memory&) const { return {}; }  // the page table of a sequence

  virtual void describe(EngineMetrics& metrics) const = 0;  // sets the counters of pages in `metrics`
};

// Maximum number of prompt and generated tokens per request according to the options and the model's context length.
// The available memory is not considered.
int64_t longest_request(const ModelConfig& config, const EngineOptions& options);
std::unique_ptr<KvCacheManager> make_kv_cache_manager(LanguageModel& model, const EngineOptions& options);

}  // namespace lazy
