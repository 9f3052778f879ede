// The sharding modes of [training] data_parallel: how training state is distributed over the ranks.
#pragma once
#include <string>

namespace lazy::distributed {

// replicate: every rank stores all weights, gradients and optimizer moments (DDP).
// zero2: gradients and optimizer moments are sharded (ZeRO-2).
// full_shard: weights are sharded too; the weights of a layer are gathered while it computes (ZeRO-3, FSDP).
enum class Sharding { replicate, zero2, full_shard };
inline constexpr Sharding kShardings[] = {Sharding::replicate, Sharding::zero2, Sharding::full_shard};

inline const char* name(Sharding sharding) {
  return sharding == Sharding::replicate ? "replicate" : sharding == Sharding::zero2 ? "zero2" : "full_shard";
}

// Inverse of name().
inline Sharding sharding_from(const std::string& text) {
  for (const Sharding sharding : kShardings) {
    if (text == name(sharding)) return sharding;
  }
  return Sharding::replicate;
}

}  // namespace lazy::distributed
