// The arguments of lazy::rope as the dispatcher passes them; every device calls the checks.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

#include "ops/optional_tensor.h"
#include "ops/rope_frequencies.h"

namespace lazy::ops {

#define LAZY_ROPE_PARAMETERS                                                                                           \
  const at::Tensor &x, double base, int64_t offset, bool inverse, const OptionalTensor &positions, int64_t rotary_dim, \
      bool interleaved, std::string_view scaling, double factor, int64_t original_length, double low_frequency,        \
      double high_frequency, double beta_fast, double beta_slow, bool truncate, double attention_factor

// rotary_dim: head_dim where -1 was given.
struct RopeArguments {
  double base;
  int64_t offset, rotary_dim;
  bool interleaved;
  RopeScaling scaling;
};
#define LAZY_ROPE_PACK                                                                                                 \
  {                                                                                                                    \
    base, offset, rotary_dim<0 && x.dim()> 0 ? x.sym_size(-1).guard_int(__FILE__, __LINE__) : rotary_dim, interleaved, \
    {                                                                                                                  \
      std::string(scaling), factor, original_length, low_frequency, high_frequency, beta_fast, beta_slow, truncate,    \
          attention_factor                                                                                             \
    }                                                                                                                  \
  }

// Without looking at data. Throws "lazy::rope: expected ..., received ...".
void check_rope(const at::Tensor& x, const OptionalTensor& positions, const RopeArguments& a);

// What the cosines and sines of a position follow from.
using RopeKey = std::tuple<double, int64_t, std::string, double, int64_t, double, double, double, double, bool, double>;
RopeKey rope_key(const RopeArguments& a);

constexpr int64_t kMostRopePositions = int64_t{1} << 24;  // a table of them is a gigabyte or more
void check_last_rope_position(int64_t last);

}  // namespace lazy::ops
