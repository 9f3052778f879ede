// `lazy data inspect`: shows the content of a corpus or a shard.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

namespace lazy {

struct InspectOptions {
  std::filesystem::path path;   // a corpus folder or a single shard
  std::string split = "train";  // split of the documents to show
  int64_t documents = 0;        // number of documents to decode and show
  int64_t first = 0;            // index of the first document to show
  bool verify = false;          // read all tokens and compare the checksums
};

// Returns the information as readable text or as JSON.
std::string inspect_text(const InspectOptions& options);
std::string inspect_json(const InspectOptions& options);

}  // namespace lazy
