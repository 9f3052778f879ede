// Offsets, distance biases and ALiBi slopes of a model, for pictures.
#pragma once
#include <filesystem>

#include "report/run.h"

namespace lazy::sinks {

// Reads the small tensors of a model folder and leaves the large ones on disk. Empty for a model that has none
// of them; a layer that does not attend has an empty row.
// Error names the file and the tensor.
report::LearnedParameters learned_parameters(const std::filesystem::path& model_directory);

}  // namespace lazy::sinks
