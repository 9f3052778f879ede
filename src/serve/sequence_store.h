// Where the engine's sequences keep what they have computed, and the passes of the model over it. Two kinds: keys and
// values in pages of one pool, all sequences in one pass; or a KVCache for each sequence and a pass for each, for
// models that pages do not serve (model/paged_keys.h).
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/language_model.h"

namespace lazy {

class DeviceSteps;
struct EngineOptions;
struct EngineMetrics;

class SequenceStore {
 public:
  // The memory of one sequence, which its destructor frees.
  struct Memory {
    virtual ~Memory() = default;
  };
  virtual ~SequenceStore() = default;

  // The longest sequence that fits when no other has memory.
  virtual int64_t max_tokens() const = 0;
  // Memory for a sequence of `tokens` tokens; null if less is free.
  virtual std::unique_ptr<Memory> admit(int64_t tokens) = 0;
  // Extends a sequence's memory to `tokens` tokens. False, and nothing changes, if less is free.
  virtual bool grow(Memory& memory, int64_t tokens) = 0;
  // Whether admit(tokens) would succeed after `freed` were destroyed.
  virtual bool can_admit(int64_t tokens, std::span<const Memory* const> freed) const = 0;
  // How many tokens from `computed` on need not be computed, as another sequence began with the same ones. `ids`: all
  // that are known; at least the last one is left to compute.
  virtual int64_t reuse(Memory& memory, std::span<const int64_t> ids, int64_t computed) = 0;
  // One pass over a chunk of each: of `ids`, from `computed` on. A sequence's chunks follow one another.
  struct Part {
    Memory* memory;
    std::span<const int64_t> ids;
    int64_t computed;
  };
  struct Extended {
    int64_t tokens;
    at::Tensor hidden;  // states (tokens, hidden_size)
  };
  // last_tokens_only: of a part that reaches the end of `ids` only the last hidden states may be there, of others none.
  // Such a pass gives other bits than one without it.
  virtual std::vector<Extended> extend(std::span<const Part> parts, bool last_tokens_only) = 0;
  // Of a pass of extend, at most.
  struct PassSize {
    size_t parts;
    int64_t tokens;
    int64_t ends;  // parts that reach the end of their ids
  };
  virtual PassSize pass_size() const = 0;

  struct Step {
    Memory* memory;
    std::span<const int64_t> ids;  // the sequence; its newest token, the last one, is computed
  };
  // One token of each sequence; returns the logits of the next ones (sequences, vocab_size), fp32.
  virtual at::Tensor step(std::span<const Step> steps) = 0;

  // Steps that sample where the model computes: null where the host samples from step()'s logits.
  virtual DeviceSteps* device_steps() { return nullptr; }
  virtual std::span<const int64_t> pages(const Memory&) const { return {}; }  // for device_steps()

  virtual void describe(EngineMetrics& metrics) const = 0;  // the fields about pages
};

// Maximum tokens of a request by the options and the model's context length, whatever memory there is.
int64_t longest_request(const ModelConfig& config, const EngineOptions& options);
std::unique_ptr<SequenceStore> make_sequence_store(LanguageModel& model, const EngineOptions& options);

}  // namespace lazy
