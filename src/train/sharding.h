// How the ranks divide the training state among them: [training] data_parallel.
#pragma once
#include <string>

namespace lazy::train {

// Every rank has all of it; gradients and moments are divided (ZeRO-2); weights too, and a layer is gathered when it is
// its turn (ZeRO-3, FSDP).
enum class Sharding { replicate, zero2, full_shard };
inline constexpr Sharding kShardings[] = {Sharding::replicate, Sharding::zero2, Sharding::full_shard};

inline const char* name(Sharding sharding) {
  return sharding == Sharding::replicate ? "replicate" : sharding == Sharding::zero2 ? "zero2" : "full_shard";
}

// Of one of these names.
inline Sharding sharding_from(const std::string& text) {
  for (const Sharding sharding : kShardings) {
    if (text == name(sharding)) return sharding;
  }
  return Sharding::replicate;
}

}  // namespace lazy::train
