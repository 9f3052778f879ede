// Detects whether a user has given the name of a model on the Hugging Face Hub where a folder is expected.
#pragma once
#include <string>

namespace lazy {

// Returns whether `path` has the form of a Hub name ("gpt2", "org/name") and no file or folder with this path exists.
bool is_hub_name(const std::string& path);

// Returns "; if 'org/name' is a model on the Hugging Face Hub, download it: `hf download org/name --local-dir name`",
// or "" if is_hub_name() is false.
std::string hub_download_hint(const std::string& path);

}  // namespace lazy
