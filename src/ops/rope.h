// lazy::rope: rotary position embedding. The first rotary_dim dimensions of every head form pairs. Pair n is rotated by
// the angle position * frequency(n), computed in fp64; cosines and sines are rounded to fp32. The other dimensions are
// copied.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "ops/optional_tensor.h"
#include "ops/rope_frequencies.h"

namespace lazy::ops {

struct RopeOptions {
  int64_t rotary_dim = -1;   // even, at most head_dim; -1: head_dim
  bool interleaved = false;  // pairs (2n, 2n + 1); otherwise (n, n + rotary_dim / 2), as in Llama, Qwen, gpt-oss
  RopeScaling scaling;
  at::Tensor positions;  // (length) or (batch, length), int32 or int64, >= 0; undefined: offset, offset + 1, ...
};

// x (batch, length, heads, head_dim) or packed (tokens, heads, head_dim), fp32 or bf16, on a GPU also fp16, with any
// strides. Token t is at position offset + t, or at options.positions[t]. Returns a contiguous tensor with the shape
// and dtype of x. Differentiable in x: the backward pass is the inverse rotation. Error messages have the form
// "lazy::rope: expected ..., received ...".
//
// On a GPU, positions are not validated, because that would synchronize. The result for a token with a negative
// position is NaN. The angles of positions outside the cached table are computed in each call; this gives the same
// result but is slower. The table has at least 8192 positions and grows to the length of the longest call without
// explicit positions.
at::Tensor rope(const at::Tensor& x, double base, int64_t offset = 0, const RopeOptions& options = {});

// The arguments of the operator as the dispatcher passes them, for the CPU and CUDA implementations.
#define LAZY_ROPE_PARAMETERS                                                                                           \
  const at::Tensor &x, double base, int64_t offset, bool inverse, const OptionalTensor &positions, int64_t rotary_dim, \
      bool interleaved, std::string_view scaling, double factor, int64_t original_length, double low_frequency,        \
      double high_frequency, double beta_fast, double beta_slow, bool truncate, double attention_factor,               \
      at::ArrayRef<double> pair_factors

// The arguments of RoPE except tensors. rotary_dim is head_dim if the caller passed -1.
struct RopeArguments {
  double base;
  int64_t offset, rotary_dim;
  bool interleaved;
  RopeScaling scaling;
};
#define LAZY_ROPE_PACK                                                                                              \
  {                                                                                                                 \
    base, offset, rotary_dim<0 && x.dim()> 0 ? known_size(x, -1) : rotary_dim, interleaved, {                       \
      std::string(scaling), factor, original_length, low_frequency, high_frequency, beta_fast, beta_slow, truncate, \
          attention_factor, std::vector<double>(pair_factors.begin(), pair_factors.end())                           \
    }                                                                                                               \
  }

// Checks the arguments without reading data. Throws "lazy::rope: expected ..., received ...".
void check_rope(const at::Tensor& x, const OptionalTensor& positions, const RopeArguments& a);

// The parameters that determine the table of cosines and sines.
using RopeKey = std::tuple<double, int64_t, std::string, double, int64_t, double, double, double, double, bool, double,
                           std::vector<double>>;
RopeKey rope_key(const RopeArguments& a);

// Upper limit of the positions: the table for this many positions needs at least one gigabyte.
constexpr int64_t kMaxRopePositions = int64_t{1} << 24;
void check_last_rope_position(int64_t last);

}  // namespace lazy::ops
