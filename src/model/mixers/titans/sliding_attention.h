// Softmax attention within a window, as Titans puts it beside or behind its memory: projections, RoPE, the operator,
// and a cache of no more than the window.
#pragma once
#include "model/blocks/linear.h"
#include "model/config.h"
#include "model/mixers/titans/persistent.h"

namespace lazy {

class SlidingAttention {
 public:
  SlidingAttention(const ModelConfig& config, int64_t layer, at::Device device);

  struct Tokens {
    at::Tensor positions, cu_seqlens;  // as in WithPersistent, of the tokens of x
  };
  // x (batch, length, hidden_size) -> the same: the heads side by side. `past`: null, or the keys and values of a
  // window, a list that this fills when it is empty. prefix (tokens, hidden_size): tokens that every query sees
  // besides, unturned; undefined: none.
  at::Tensor forward(const NormOutput& x, const Tokens& tokens, const at::Tensor& prefix, std::vector<at::Tensor>* past,
                     bool deterministic) const;

  Linear qkv;  // parts: q_proj, k_proj, v_proj

 private:
  ModelConfig config_;
  int64_t window_;
};

}  // namespace lazy
