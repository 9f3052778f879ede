// Names of models on the Hugging Face Hub that were given where a folder was expected.
#pragma once
#include <string>

namespace lazy {

// Whether `path` has the form of such a name ("gpt2", "org/name") and is not the path of something that exists.
bool is_hub_name(const std::string& path);

// "; if 'org/name' is a model on the Hugging Face Hub, download it: `hf download org/name --local-dir name`", or "" if
// is_hub_name() is false.
std::string hub_download_hint(const std::string& path);

}  // namespace lazy
