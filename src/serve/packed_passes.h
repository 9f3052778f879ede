// Passes of a model over chunks of prompts that lie end to end, as one sequence of tokens. Keys and values go to pages
// of the engine's pool.
//
// On a GPU a pass always has most_tokens() tokens, so that a token's products do not depend on what else is in the
// pass: behind the chunks come tokens that go to no page. A pass is a CUDA graph, recorded when its shape comes for
// the second time: a few hundred kernels take the host longer than the GPU.
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

class PackedPasses {
 public:
  // A chunk of a sequence: of `ids`, from `computed` on. Chunks of a sequence, which have its pages, follow one
  // another.
  struct Part {
    std::span<const int64_t> pages;  // of the sequence
    std::span<const int64_t> ids;    // all that are known
    int64_t computed;
  };

  // `pages`: the pools, whose other fields are not used. Both outlive this. chunk: tokens of a part at most.
  PackedPasses(LanguageModel& model, const PagedKeys& pages, int64_t page_size, int64_t chunk, bool record);

  // Of a pass, on a GPU exactly.
  int64_t most_tokens() const { return most_tokens_; }
  // Hidden states (tokens, hidden_size) of the parts, one behind the other. Valid until the next pass. With
  // last_tokens_only those of the last token of each sequence that the parts reach the end of, at most kMostEnds:
  // behind the last layer's attention nothing else is computed.
  at::Tensor run(std::span<const Part> parts, bool last_tokens_only);
  static constexpr int64_t kMostEnds = 256;

 private:
  struct Layout;
  struct Shape {
    int64_t sequences, keys, longest;
    bool last_tokens_only;
    auto operator<=>(const Shape&) const = default;
  };
  struct Recorded {
    // On the GPU: ids, positions, slots, sources and rows, int64; both cu_seqlens, int32.
    at::Tensor numbers, offsets;
    std::function<void()> replay;  // empty: has run once
  };

  Layout lay_out(std::span<const Part> parts, bool last_tokens_only) const;
  Shape pad(Layout& layout) const;
  at::Tensor forward(const at::Tensor& ids, PagedKeys paged, const at::Tensor& rows) const;
  at::Tensor run_once(const Layout& layout) const;
  void run_recorded(const Layout& layout, const Shape& shape, Recorded& recorded);

  LanguageModel& model_;
  const PagedKeys& pages_;
  const int64_t page_size_, chunk_, most_tokens_;
  bool records_;       // else every pass is queued kernel by kernel
  at::Tensor hidden_;  // of recorded passes
  std::unique_ptr<ops::Recorder> recorder_;
  std::map<Shape, Recorded> recorded_;
};

}  // namespace lazy
