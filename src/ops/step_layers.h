// The layers of a decoding step in one kernel, on a GPU.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "ops/attention_weights.h"
#include "ops/rope_to_pages.h"

namespace lazy::ops {

// x += attention(rms_norm(x) W_qkv^T) W_output^T, then x += swiglu(rms_norm(x) W_gate_up^T) W_down^T.
struct StepLayer {
  at::Tensor qkv, output, gate_up, down;  // in x's type
  at::Tensor norm, mlp_norm;              // (hidden) fp32
  int64_t heads = 0;
  AttentionTerms attention;
  PagePlaces pages;  // with positions (tokens, 1)
};

// What the steps of a model, of which one runs at a time, leave for the next one: flags that count on, by the size of
// the memory.
class StepWords {
 public:
  // (count) int64, zeros at first.
  at::Tensor of(int64_t count, at::Device device);

 private:
  std::map<int64_t, at::Tensor> by_count_;
};

struct StepLayers {
  at::Tensor x;  // (tokens, hidden): one of each sequence
  std::vector<StepLayer> layers;
  double eps = 0;
  at::Tensor lengths, block_table;  // as decode's, int64
  StepWords* words = nullptr;
};
// x behind the layers, with the bits of few_rows_product, few_rows_to_pages and decode (invariant) one by one. Nothing
// where they serve alone: then nothing was changed.
std::optional<at::Tensor> step_layers(const StepLayers& in);

}  // namespace lazy::ops
