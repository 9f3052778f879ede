// One split of a corpus while it is written: shards of bounded size, one after the other.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "data/shards/corpus.h"

namespace lazy {

class SplitWriter {
 public:
  // Writes FOLDER/NAME-00000.bin and so on. A document is never cut: the one that reaches `shard_bytes` is the last.
  SplitWriter(std::filesystem::path folder, std::string name, const ShardTokenizer& tokenizer, uint64_t shard_bytes)
      : folder_(std::move(folder)), name_(std::move(name)), tokenizer_(tokenizer), shard_bytes_(shard_bytes) {}
  void add(std::span<const int32_t> document, uint64_t source_bytes);
  void close();
  const SplitSummary& summary() const { return summary_; }

 private:
  std::filesystem::path folder_;
  std::string name_;
  ShardTokenizer tokenizer_;
  uint64_t shard_bytes_;
  std::optional<ShardWriter> shard_;
  SplitSummary summary_;
};

}  // namespace lazy
