// The shard file: tokens of whole documents, ready to be mapped into memory. All numbers are little-endian.
//
//   0    header, 128 bytes (ShardHeader)
//   128  tokens, uint16 or uint32 each, document after document without separators; padded to 8 bytes
//   ...  document starts, uint64 each, in tokens; one more than there are documents, the last is the token count
//
// No BOS or EOS is stored: whoever reads the documents adds them (data/sequences.h).
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/file.h"

namespace lazy {

static_assert(std::endian::native == std::endian::little, "shards are mapped as they are: little-endian machines only");

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
  uint64_t source_bytes;           // UTF-8 text that the tokens stand for
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

// Checksum of a stream: checksum() over the checksums of its 1 MiB blocks, so that it can be computed while writing.
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

}  // namespace lazy
