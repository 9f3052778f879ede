// Shard files: tokens of whole documents, memory-mapped for reading. All numbers are little-endian.
//
//   0    header, 128 bytes (ShardHeader)
//   128  tokens, uint16 or uint32 each, document after document without separators; padded to 8 bytes
//   ...  document starts, uint64 each, in tokens; one more than there are documents, the last is the token count
//
// No BOS or EOS is stored: data/sequences.h inserts them.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/checksum.h"
#include "core/file.h"

namespace lazy {

static_assert(std::endian::native == std::endian::little,
              "shards are mapped without conversion: little-endian machines only");

inline constexpr char kShardMagic[8] = {'L', 'A', 'Z', 'Y', 'S', 'H', 'R', 'D'};
inline constexpr uint32_t kShardVersion = 1;

struct ShardHeader {
  char magic[8];
  uint32_t version;
  uint32_t header_bytes;  // 128
  uint32_t token_bytes;   // 2 when the vocabulary has at most 65536 entries, else 4
  uint32_t reserved;      // 0
  uint64_t tokens;
  uint64_t documents;
  uint64_t source_bytes;           // bytes of UTF-8 text that the tokens encode
  uint64_t tokenizer_fingerprint;  // Tokenizer::fingerprint()
  int64_t vocab_size;
  int32_t bos_id, eos_id;  // -1: none
  uint64_t tokens_offset;  // 128
  uint64_t index_offset;
  uint64_t tokens_checksum;  // BlockChecksum of the token bytes, without padding
  uint64_t index_checksum;   // BlockChecksum of the document starts
  uint64_t reserved2[2];     // 0
  uint64_t header_checksum;  // checksum() of the bytes before it
};
static_assert(sizeof(ShardHeader) == 128 && offsetof(ShardHeader, header_checksum) == 120);

inline uint64_t header_checksum(const ShardHeader& header) {
  return checksum(&header, offsetof(ShardHeader, header_checksum));
}

// Checksum of a stream: checksum() over the checksums of its 1 MiB blocks. Incremental, for writers.
class BlockChecksum {
 public:
  void add(const void* data, size_t size) {
    const char* bytes = static_cast<const char*>(data);
    while (size > 0) {
      if (block_.empty() && size >= kBlock) {
        push(checksum(bytes, kBlock));
        bytes += kBlock;
        size -= kBlock;
        continue;
      }
      const size_t n = size < kBlock - block_.size() ? size : kBlock - block_.size();
      block_.append(bytes, n);
      bytes += n;
      size -= n;
      if (block_.size() == kBlock) flush();
    }
  }
  uint64_t finish() {
    if (!block_.empty()) flush();
    return checksum(blocks_);
  }

 private:
  static constexpr size_t kBlock = 1 << 20;
  void flush() {
    push(checksum(block_));
    block_.clear();
  }
  void push(uint64_t value) { blocks_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  std::string block_, blocks_;
};

// The tokenizer of a corpus, as recorded in every shard.
struct ShardTokenizer {
  uint64_t fingerprint = 0;
  int64_t vocab_size = 0;
  int32_t bos_id = -1, eos_id = -1;
};

class ShardWriter {
 public:
  ShardWriter(const std::filesystem::path& path, const ShardTokenizer& tokenizer);
  // Ids must be in [0, vocab_size).
  void add(std::span<const int32_t> document, uint64_t source_bytes) {
    append(document);
    end_document(source_bytes);
  }
  // The same in pieces: append() adds ids to the current document.
  void append(std::span<const int32_t> ids);
  void end_document(uint64_t source_bytes);
  uint64_t bytes() const;  // size of the file if it were closed now
  // Writes the index and the header and syncs. Until then the file has no magic and is not a shard.
  ShardHeader close();

 private:
  FileWriter file_;
  ShardHeader header_{};
  std::vector<uint64_t> starts_{0};
  std::vector<uint16_t> narrow_;
  BlockChecksum tokens_checksum_;
};

// Whether opening a shard checks its document index too, or only its header.
enum class ShardCheck { index, header };

// Opening checks magic, version, sizes, header checksum and, by default, the document index. Errors name the file, the
// field, what was expected and what was found. verify() checks the tokens.
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

  // For shards opened with ShardCheck::header; these read only the pages they need.
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
