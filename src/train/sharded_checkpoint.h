// A checkpoint that several ranks write together: each its own pieces, rank 0 the rest, and either all of it is there
// afterwards or nothing.
#pragma once
#include <filesystem>
#include <functional>
#include <vector>

#include "train/checkpoint.h"
#include "train/checkpoint_pieces.h"

namespace lazy::train {

// Called by every rank with what went wrong there, or ""; waits for all of them. Returns a failure that one passed, or
// "".
using Agree = std::function<std::string(const std::string&)>;

// Every rank calls this, from its training or its writing thread, with the same step; the folder must be on a file
// system that all see. `write_rest` (rank 0 only) writes the model and whatever else belongs there. state.json, the
// checksums of all files and the rename come when every rank has written. When one fails, all throw RunError with its
// reason, and nothing of the checkpoint stays.
void save_sharded(CheckpointStore& store, const TrainState& state, int rank, int world,
                  const std::vector<Piece>& pieces, const std::function<void(const std::filesystem::path&)>& write_rest,
                  const Agree& agree);

}  // namespace lazy::train
