// What is in a corpus or a shard, for `lazy data inspect`.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

namespace lazy {

struct InspectOptions {
  std::filesystem::path path;   // a corpus folder or one shard
  std::string split = "train";  // whose documents are shown
  int64_t documents = 0;        // how many documents to show, decoded
  int64_t first = 0;            // from this one on
  bool verify = false;          // read every token and compare the checksums
};

// As text for people, or as JSON.
std::string inspect_text(const InspectOptions& options);
std::string inspect_json(const InspectOptions& options);

}  // namespace lazy
