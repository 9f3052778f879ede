// How large a recipe is run: minutes on two CPU cores, the 55M recipe on one GPU, or the paper's own configurations.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace lazy::repro {

// The paper trains its Table 1 models longer and at a longer context than its ablations.
enum class Budget { main, ablation, large };  // large: 760M for 30B tokens, at paper scale alone

struct Scale {
  std::string name;       // "tiny", "small", "paper"
  std::string means;      // for people
  bool bos_per_sequence;  // how its training sequences begin
  int64_t heldout_sequences, sink_samples, length_blocks;
  bool is_paper() const { return name == "paper"; }
  int64_t context(Budget budget) const;
  int64_t bias_window(Budget budget) const;  // of the standard Lazy model
  // Configurations that a model extends, of configs/; later ones win. kind: as in [model].
  std::vector<std::string> files(const std::string& kind, Budget budget) const;
  // What these leave open for models of attention: other mixers have no such key.
  std::vector<std::string> attention_overrides() const;
};

const std::vector<Scale>& scales();
// Error suggests the nearest.
const Scale& find_scale(const std::string& name);

}  // namespace lazy::repro
