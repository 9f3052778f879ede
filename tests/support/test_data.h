// Real corpora, tokenizers and benchmarks that are not part of the repository.
#pragma once
#include <cstdlib>
#include <filesystem>
#include <string>

namespace lazy {

// Returns the path $LAZY_TEST_DATA/NAME, or "" if the variable is unset or empty or the folder does not contain NAME.
inline std::string test_data(const std::string& name) {
  const char* root = std::getenv("LAZY_TEST_DATA");
  if (!root || !*root) return "";
  const std::filesystem::path path = std::filesystem::path(root) / name;
  return std::filesystem::exists(path) ? path.string() : "";
}

}  // namespace lazy
