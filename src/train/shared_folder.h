// Whether all ranks of a run see one folder: each then writes and reads its own part of a checkpoint there.
#pragma once
#include <filesystem>

#include "train/distributed/communicator.h"

namespace lazy::train {

// Collective; the first rank's folder exists. False where only some see it, or write into one of the same name.
bool is_shared_folder(const std::filesystem::path& folder, Communicator& communicator);

}  // namespace lazy::train
