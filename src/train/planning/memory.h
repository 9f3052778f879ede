// How much memory a training step needs on each GPU, part by part, from the shapes alone.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "model/language_model.h"

namespace lazy::train {

// How the ranks divide the training state, [training] data_parallel: every rank has all of it; gradients and moments are
// divided (ZeRO-2); weights too, and a layer is gathered when it is its turn.
enum class StateSharding { replicate, zero2, full_shard };
const char* name(StateSharding sharding);
inline constexpr StateSharding kShardings[] = {StateSharding::replicate, StateSharding::zero2};  // what data_parallel takes

struct MemoryQuestion {
  ModelConfig model;
  int64_t batch_size = 1, seq_len = 1;
  int64_t accumulation = 1;  // micro-batches a step on each rank
  int64_t ranks = 1;
  bool bf16 = true;
  bool gpu = true;           // a GPU keeps less: norms and SwiGLU are made again
  StateSharding sharding = StateSharding::replicate;
  Checkpointing checkpointing = Checkpointing::none;
};

struct MemoryPart {
  std::string name;
  int64_t bytes = 0;
};

// What exists at once when the backward pass begins: training state, then what the forward pass has kept. The order is
// that in which it comes into being. Allocator rounding and CUDA's own context are not in it.
std::vector<MemoryPart> state_parts(const MemoryQuestion& question);
std::vector<MemoryPart> activation_parts(const MemoryQuestion& question);
// What comes and goes beside that, one after the other: the peak holds the largest of these.
std::vector<MemoryPart> passing_parts(const MemoryQuestion& question);
// The sum of the former and the largest of the latter.
int64_t peak_bytes(const MemoryQuestion& question);

}  // namespace lazy::train
