// Packed prefill: one forward pass over chunks of several prompts, which are concatenated into one sequence of tokens.
// Keys and values are written to the pages of the engine's pool.
//
// On a GPU every pass has the same number of tokens, so that the result of a token does not depend on the other tokens
// in the pass. The chunks are followed by padding tokens, whose keys and values are written to the reserved page 0. A
// pass is captured as a CUDA graph when its shape occurs for the second time, because launching its few hundred kernels
// takes the host longer than the GPU needs to run them.
#pragma once
#include <ATen/core/Tensor.h>

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "model/language_model.h"
#include "model/paged_keys.h"
#include "ops/recorder.h"

namespace lazy {

class PrefillRunner {
 public:
  // One chunk of a prompt: the tokens of `ids` from index `computed` on, up to the chunk size. Several chunks of the
  // same sequence must be adjacent and must have the same `pages`.
  struct PromptPart {
    std::span<const int64_t> pages;  // page table of the sequence
    std::span<const int64_t> ids;    // all known tokens of the sequence
    int64_t computed;
  };

  // `pages` supplies the K and V pools; its other fields are ignored. `model` and `pages` must outlive this object.
  // chunk: maximum number of tokens per part.
  PrefillRunner(LanguageModel& model, const PagedKeys& pages, int64_t page_size, int64_t chunk, bool record);

  // Maximum number of tokens per pass. On a GPU every pass is padded to this number.
  int64_t most_tokens() const { return most_tokens_; }
  // Returns the concatenated hidden states (tokens, hidden_size) of the parts, which are valid until the next pass.
  // With last_tokens_only, the result contains only the hidden states of the last tokens of those sequences whose last
  // chunk is in `parts` (at most 256 sequences). For all other tokens, the computation then ends after the attention of
  // the last layer.
  at::Tensor run(std::span<const PromptPart> parts, bool last_tokens_only);
  static constexpr int64_t kMaxLogitRows = 256;

 private:
  struct Layout;
  struct Shape {
    int64_t sequences, keys, longest;
    bool last_tokens_only;
    auto operator<=>(const Shape&) const = default;
  };
  struct Recorded {
    // Inputs on the GPU. numbers (int64): ids, positions, slots, sources and rows, concatenated. offsets (int32):
    // cu_seqlens of the queries, then of the keys.
    at::Tensor numbers, offsets;
    std::function<void()> replay;  // replays the captured graph; empty if the shape is not captured yet
  };

  Layout lay_out(std::span<const PromptPart> parts, bool last_tokens_only) const;
  Shape pad(Layout& layout) const;
  at::Tensor forward(const at::Tensor& ids, PagedKeys paged, const at::Tensor& rows) const;
  at::Tensor run_once(const Layout& layout) const;
  void run_recorded(const Layout& layout, const Shape& shape, Recorded& recorded);

  LanguageModel& model_;
  const PagedKeys& pages_;
  const int64_t page_size_, chunk_, most_tokens_;
  bool records_;       // false: every pass launches its kernels individually
  at::Tensor hidden_;  // output buffer of captured passes
  std::unique_ptr<ops::Recorder> recorder_;
  std::map<Shape, Recorded> recorded_;
};

}  // namespace lazy
