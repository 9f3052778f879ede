// `lazy data inspect`: the content of a corpus or a shard.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

namespace lazy {

struct InspectOptions {
  std::filesystem::path path;   // a corpus folder or one shard
  std::string split = "train";  // of the documents to show
  int64_t documents = 0;        // how many documents to show, decoded
  int64_t first = 0;            // index of the first one
  bool verify = false;          // read every token and compare the checksums
};

// As text for people, or as JSON.
std::string inspect_text(const InspectOptions& options);
std::string inspect_json(const InspectOptions& options);

}  // namespace lazy
