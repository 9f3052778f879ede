// Paths that commands accept where they read a model.
#pragma once
#include <string>

namespace lazy::cli {

// The model folder that `path` names: `path` itself if it contains config.json (a model folder or a checkpoint); for
// the run folder of `lazy train`, its finished model, or else its newest valid checkpoint. Error "OPERATION: ..." that
// says what was expected if it is none of these.
std::string resolve_model_folder(const char* operation, const std::string& path);

}  // namespace lazy::cli
