// The protocol of `lazy repro evidence`, which configs/evidence.toml defines: blocks of cells (model configurations),
// each trained with several seeds, and the sizes of the measurements.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "measure/sizes.h"
#include "repro/plan.h"

namespace lazy::repro {

struct EvidenceBlock {
  std::string name, question;
  std::vector<std::string> cells, exploratory;  // cell names in order; the cells that are not used to decide any claim
  std::vector<int64_t> seeds;
  int64_t tokens = 0;
  std::vector<std::string> overrides;  // apply to every cell of the block
  int64_t snapshot_every = 0;          // training tokens between two snapshots; 0: no snapshots
  // If set, this block has a condition: its cell `condition` is trained first, and the remaining cells are trained only
  // if the mean excess sink of this cell over `condition_seeds` seeds exceeds `condition_excess`.
  std::string condition;
  int64_t condition_seeds = 0;
  double condition_excess = 0;
};

// One training with its measurements, which yields one record.
struct EvidenceRun {
  std::string block, cell;
  int64_t seed = 1, tokens = 0, snapshot_every = 0;
  bool exploratory = false;
  std::vector<std::string> overrides;  // from protocol, block, cell and seed; later overrides take precedence

  std::string name() const;  // for example "softmax.seed1"; unique within a block
  std::string id() const;    // for example "B.softmax.seed1", which is also the name of the record
};

struct Protocol {
  int64_t version = 0;
  std::string extends;  // the base configuration in configs/
  std::vector<std::string> overrides;
  int64_t curve_points = 200, validation_tokens = 10'000'000;
  MeasureSizes sizes;  // section [measures] of the protocol
  std::map<std::string, std::vector<std::string>> cells;
  std::vector<EvidenceBlock> blocks;  // in the order in which they run
  std::string fingerprint;            // checksum of the protocol's text

  // All runs, ordered by block, then seed, then cell. The exploratory runs of all blocks come last.
  std::vector<EvidenceRun> runs() const;
  // Throws an Error for an unknown name and suggests the nearest block.
  const EvidenceBlock& block(const std::string& name) const;
};

// Errors name the position in the file `name` and suggest the nearest known key, block or cell.
Protocol read_protocol(const std::string& text, const std::string& name);
Protocol embedded_protocol();

// Selects runs. `blocks` lists block names, and `only` lists runs as "CELL.seedK" or "BLOCK.CELL.seedK"; an empty list
// selects everything. Throws an Error for a name that does not match any run.
std::vector<EvidenceRun> selected_runs(const Protocol& protocol, const std::vector<std::string>& blocks,
                                       const std::vector<std::string>& only);

}  // namespace lazy::repro
