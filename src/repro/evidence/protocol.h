// The protocol of `lazy repro evidence` as data (configs/evidence.toml): blocks of cells, each trained with several
// seeds, and the sizes of their measures.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace lazy::repro {

// Section [measures]; configs/evidence.toml describes the keys.
struct EvidenceSizes {
  std::string dtype = "auto";
  int64_t heldout_tokens = 8'000'000;
  std::vector<int64_t> sink_lengths{64, 512};
  int64_t sink_tokens = 262'144;
  std::vector<int64_t> lengths{512, 1024, 2048, 4096};
  int64_t length_blocks = 256;
  double other_rope_base = 1.5e5;
  int64_t probe_samples = 32, collapse_samples = 8;
  int64_t snapshot_tokens = 1'000'000;
};

struct EvidenceBlock {
  std::string name, question;
  std::vector<std::string> cells, exploratory;  // names of cells, in order; those of them that decide no claim
  std::vector<int64_t> seeds;
  int64_t tokens = 0;
  std::vector<std::string> overrides;  // of every cell of the block
  int64_t snapshot_every = 0;          // tokens between two measurements within training; 0: none
  // The other cells wait until this one's mean excess sink over `condition_seeds` seeds is above `condition_excess`.
  // Empty: they do not wait.
  std::string condition;
  int64_t condition_seeds = 0;
  double condition_excess = 0;
};

// A training with its measurements, and one record.
struct EvidenceRun {
  std::string block, cell;
  int64_t seed = 1, tokens = 0, snapshot_every = 0;
  bool exploratory = false;
  std::vector<std::string> overrides;  // of the protocol, the block, the cell and the seed; later ones win

  std::string name() const;  // "softmax.seed1", unique within a block
  std::string id() const;    // "B.softmax.seed1": names the record
};

struct Protocol {
  int64_t version = 0;
  std::string extends;  // a configuration of configs/
  std::vector<std::string> overrides;
  int64_t curve_points = 200, validation_tokens = 10'000'000;
  EvidenceSizes sizes;
  std::map<std::string, std::vector<std::string>> cells;
  std::vector<EvidenceBlock> blocks;  // in the order of their runs
  std::string fingerprint;            // of the text

  // Block by block, seed by seed, cell by cell; the exploratory ones of all blocks follow.
  std::vector<EvidenceRun> runs() const;
  // Error suggests the nearest.
  const EvidenceBlock& block(const std::string& name) const;
};

// Error names the place in `name`, and for an unknown key, block or cell the nearest known one.
Protocol read_protocol(const std::string& text, const std::string& name);
Protocol embedded_protocol();

// The runs of `blocks` (all, if empty) that `only` names (all, if empty) as "CELL.seedK" or "BLOCK.CELL.seedK". Error
// for a name that fits no run.
std::vector<EvidenceRun> selected_runs(const Protocol& protocol, const std::vector<std::string>& blocks,
                                       const std::vector<std::string>& only);

}  // namespace lazy::repro
