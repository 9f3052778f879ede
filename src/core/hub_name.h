// Names of models on the Hugging Face Hub that were given where a folder was expected.
#pragma once
#include <string>

namespace lazy {

// "; if 'org/name' is a model on the Hugging Face Hub, download it: `hf download org/name --local-dir name`", or "" if
// `path` exists or does not have the form of such a name.
std::string hub_download_hint(const std::string& path);

}  // namespace lazy
