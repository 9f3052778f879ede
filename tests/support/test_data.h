// Real corpora, tokenizers and benchmarks, which the repository does not hold.
#pragma once
#include <cstdlib>
#include <filesystem>
#include <string>

namespace lazy {

// The path of $LAZY_TEST_DATA/NAME; empty if the variable is unset or empty, or if the folder lacks it.
inline std::string test_data(const std::string& name) {
  const char* root = std::getenv("LAZY_TEST_DATA");
  if (!root || !*root) return "";
  const std::filesystem::path path = std::filesystem::path(root) / name;
  return std::filesystem::exists(path) ? path.string() : "";
}

}  // namespace lazy
