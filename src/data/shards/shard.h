// Shard files contain the tokens of whole documents and are memory-mapped for reading. All numbers are little-endian.
//
//   0    header, 128 bytes (ShardHeader)
//   128  tokens, uint16 or uint32 each, all documents without separators; padded to a multiple of 8 bytes
//   ...  document starts as token indices, uint64 each; there is one more entry than documents, and the last entry is
//        the token count
//
// BOS and EOS are not stored; data/sequences.h inserts them.
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
  uint32_t header_bytes;  // always 128
  uint32_t token_bytes;   // bytes per token: 2 if vocab_size <= 65536, else 4
  uint32_t reserved;      // always 0
  uint64_t tokens;
  uint64_t documents;
  uint64_t source_bytes;           // number of bytes of UTF-8 text that the tokens encode
  uint64_t tokenizer_fingerprint;  // Tokenizer::fingerprint()
  int64_t vocab_size;
  int32_t bos_id, eos_id;  // -1: the tokenizer has no such token
  uint64_t tokens_offset;  // always 128
  uint64_t index_offset;
  uint64_t tokens_checksum;  // BlockChecksum of the token bytes, without padding
  uint64_t index_checksum;   // BlockChecksum of the document starts
  uint64_t reserved2[2];     // always 0
  uint64_t header_checksum;  // checksum() of all preceding bytes
};
static_assert(sizeof(ShardHeader) == 128 && offsetof(ShardHeader, header_checksum) == 120);

inline uint64_t header_checksum(const ShardHeader& header) {
  return checksum(&header, offsetof(ShardHeader, header_checksum));
}

// Computes the checksum of data that is written in parts. The data is divided into blocks of 1 MiB, and the result is
// checksum() of the concatenated checksums of the blocks.
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

// The properties of a corpus's tokenizer that the header of every shard contains.
struct ShardTokenizer {
  uint64_t fingerprint = 0;
  int64_t vocab_size = 0;
  int32_t bos_id = -1, eos_id = -1;
};

class ShardWriter {
 public:
  ShardWriter(const std::filesystem::path& path, const ShardTokenizer& tokenizer);
  // Writes one document. Its ids must be in [0, vocab_size).
  void add(std::span<const int32_t> document, uint64_t source_bytes) {
    append(document);
    end_document(source_bytes);
  }
  // Writes a document in parts: append() adds ids to the current document.
  void append(std::span<const int32_t> ids);
  void end_document(uint64_t source_bytes);
  uint64_t bytes() const;  // size of the file if it were closed now
  // Writes the index and the header and syncs the file. Before this call the file has no magic number and is not a
  // valid shard.
  ShardHeader close();

 private:
  FileWriter file_;
  ShardHeader header_{};
  std::vector<uint64_t> starts_{0};
  std::vector<uint16_t> narrow_;
  BlockChecksum tokens_checksum_;
};

// Whether opening a shard also checks its document index, or only its header.
enum class ShardCheck { index, header };

// Opening a shard checks magic number, version, sizes, header checksum and, by default, the document index. Errors
// contain the file, the field, the expected value and the value found. verify() checks the tokens.
class Shard {
 public:
  explicit Shard(const std::filesystem::path& path, ShardCheck check = ShardCheck::index);
  const std::filesystem::path& path() const { return map_.path(); }
  const ShardHeader& header() const { return header_; }
  int64_t documents() const { return static_cast<int64_t>(header_.documents); }
  int64_t tokens() const { return static_cast<int64_t>(header_.tokens); }
  // Returns the index of the first token of document `d`; start(documents()) equals tokens().
  int64_t start(int64_t d) const { return static_cast<int64_t>(starts_[d]); }
  // Writes the ids of the tokens [begin, begin + count) to `out`.
  void read(int64_t begin, int64_t count, int64_t* out) const;

  // range() and read_checked() are for shards that were opened with ShardCheck::header. They read and check only the
  // index entries and the ids that the caller requests.
  struct Range {
    int64_t begin, end;
  };
  Range range(int64_t d) const;  // tokens of document `d`; throws Error if the index entry is damaged
  [[noreturn]] void fail_index(int64_t d) const;
  // Like read(), but throws Error if an id is outside of the vocabulary.
  void read_checked(int64_t begin, int64_t count, int64_t* out) const;

  std::vector<int32_t> document(int64_t d) const;
  // Reads all tokens and verifies their checksum and the range of the ids.
  void verify() const;

 private:
  void check() const;
  MappedFile map_;
  ShardHeader header_{};
  const std::byte* tokens_ = nullptr;
  const uint64_t* starts_ = nullptr;
};

}  // namespace lazy
