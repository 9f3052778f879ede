#include "train/planning/advice.h"

#include <fmt/format.h>

namespace lazy::train {

std::string advice(const TrainConfig& config, MemoryQuestion q, double capacity) {
  const int64_t sequences = config.tokens_per_step() / config.seq_len;
  const auto with_batch = [&](int64_t batch) {
    MemoryQuestion other = q;
    other.batch_size = batch;
    other.accumulation = sequences / (batch * q.ranks);
    return other;
  };
  for (const Checkpointing checkpointing :
       {Checkpointing::none, Checkpointing::mlp, Checkpointing::attention, Checkpointing::full}) {
    if (checkpointing < q.checkpointing) continue;
    const bool more = checkpointing > q.checkpointing;
    q.checkpointing = checkpointing;
    for (int64_t batch = more ? q.batch_size : q.batch_size - 1; batch >= 1; --batch) {
      const MemoryQuestion other = with_batch(batch);
      if (sequences % (batch * q.ranks) != 0 || static_cast<double>(peak_bytes(other)) > capacity) continue;
      std::string text = fmt::format("training.batch_size = {}", batch);
      if (config.global_batch_tokens == 0)
        text += fmt::format(", gradient_accumulation_steps = {}", other.accumulation);
      if (more) text += fmt::format(", activation_checkpointing = \"{}\"", name(checkpointing));
      return text + " fits";
    }
  }
  for (const Sharding sharding : kShardings) {
    MemoryQuestion other = with_batch(1);
    other.sharding = sharding;
    if (sharding > q.sharding && static_cast<double>(peak_bytes(other)) <= capacity) {
      return fmt::format(
          "training.data_parallel = \"{}\" with batch_size = 1, activation_checkpointing = \"full\" fits",
          name(sharding));
    }
  }
  return "not at any batch size: a smaller model, or GPUs with more memory";
}

}  // namespace lazy::train
