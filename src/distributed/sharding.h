// How training state is divided among ranks: the sharding mode of [training] data_parallel, and one rank's shard of a
// tensor.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace lazy::distributed {

// replicate: every rank holds weights, gradients and moments in full (DDP).
// zero2: gradients and moments are sharded (ZeRO-2).
// full_shard: weights too; a layer's weights are gathered while it computes (ZeRO-3, FSDP).
enum class Sharding { replicate, zero2, full_shard };
inline constexpr Sharding kShardings[] = {Sharding::replicate, Sharding::zero2, Sharding::full_shard};

inline const char* name(Sharding sharding) {
  return sharding == Sharding::replicate ? "replicate" : sharding == Sharding::zero2 ? "zero2" : "full_shard";
}

// The inverse of name().
inline Sharding sharding_from(const std::string& text) {
  for (const Sharding sharding : kShardings) {
    if (text == name(sharding)) return sharding;
  }
  return Sharding::replicate;
}

// The part of a named tensor that one rank holds. Independent of the number of ranks, so that a checkpoint can be
// resharded when it is loaded.
struct TensorShard {
  std::string name;
  at::Tensor tensor;                  // elements [begin, end) of the whole tensor, flattened in row-major order
  std::vector<int64_t> global_shape;  // of the whole tensor
  int64_t begin = 0, end = 0;

  int64_t global_numel() const {
    int64_t n = 1;
    for (const int64_t size : global_shape) n *= size;
    return n;
  }
};

}  // namespace lazy::distributed
