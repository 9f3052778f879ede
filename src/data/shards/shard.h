// Shard files: written document by document, read through a memory map.
#pragma once
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "data/shards/format.h"

namespace lazy {

// What every shard of a corpus says about the tokenizer that made it.
struct ShardTokenizer {
  uint64_t fingerprint = 0;
  int64_t vocab_size = 0;
  int32_t bos_id = -1, eos_id = -1;
};

class ShardWriter {
 public:
  ShardWriter(const std::filesystem::path& path, const ShardTokenizer& tokenizer);
  // Ids must lie in [0, vocab_size).
  void add(std::span<const int32_t> document, uint64_t source_bytes);
  uint64_t bytes() const;  // of the file, were it closed now
  // Writes the index and the header and syncs. The file is not a shard before.
  ShardHeader close();

 private:
  FileWriter file_;
  ShardHeader header_{};
  std::vector<uint64_t> starts_{0};
  std::vector<uint16_t> narrow_;
  BlockChecksum tokens_checksum_;
};

// Whether opening a shard reads its document index, or its header alone.
enum class ShardCheck { index, header };

// Opening checks magic, version, sizes, header checksum and, unless told otherwise, the document index, and throws
// Error naming the file, the field, what was expected and what was found. Tokens are checked by verify().
class Shard {
 public:
  explicit Shard(const std::filesystem::path& path, ShardCheck check = ShardCheck::index);
  const std::filesystem::path& path() const { return map_.path(); }
  const ShardHeader& header() const { return header_; }
  int64_t documents() const { return static_cast<int64_t>(header_.documents); }
  int64_t tokens() const { return static_cast<int64_t>(header_.tokens); }
  // First token of document `d`; start(documents()) is tokens().
  int64_t start(int64_t d) const { return static_cast<int64_t>(starts_[d]); }
  // Copies tokens [begin, begin + count) as ids.
  void read(int64_t begin, int64_t count, int64_t* out) const;

  // For a shard opened with ShardCheck::header, whose pages are read where they are needed and nowhere else:
  struct Range {
    int64_t begin, end;
  };
  Range range(int64_t d) const;  // tokens of document `d`; Error when the index is damaged there
  [[noreturn]] void fail_index(int64_t d) const;
  // As read(); Error when an id is outside the vocabulary.
  void read_checked(int64_t begin, int64_t count, int64_t* out) const;

  std::vector<int32_t> document(int64_t d) const;
  // Reads every token: checksum and range of ids.
  void verify() const;

 private:
  void check() const;
  MappedFile map_;
  ShardHeader header_{};
  const std::byte* tokens_ = nullptr;
  const uint64_t* starts_ = nullptr;
};

}  // namespace lazy
