#include <cstring>

#include "core/error.h"
#include "data/shards/shard.h"

namespace lazy {
namespace {

constexpr uint64_t padded(uint64_t bytes) { return (bytes + 7) / 8 * 8; }

}  // namespace

ShardWriter::ShardWriter(const std::filesystem::path& path, const ShardTokenizer& tokenizer) : file_(path) {
  std::memcpy(header_.magic, kShardMagic, sizeof header_.magic);
  header_.version = kShardVersion;
  header_.header_bytes = sizeof header_;
  header_.token_bytes = tokenizer.vocab_size <= 65536 ? 2 : 4;
  header_.tokenizer_fingerprint = tokenizer.fingerprint;
  header_.vocab_size = tokenizer.vocab_size;
  header_.bos_id = tokenizer.bos_id;
  header_.eos_id = tokenizer.eos_id;
  header_.tokens_offset = sizeof header_;
  const ShardHeader empty{};  // stays until close(): an unfinished file has no magic
  file_.write(&empty, sizeof empty);
}

void ShardWriter::add(std::span<const int32_t> document, uint64_t source_bytes) {
  for (const int32_t id : document) {
    if (id < 0 || id >= header_.vocab_size) {
      fail_run("shard", "id {} does not belong to a vocabulary of {}", id, header_.vocab_size);
    }
  }
  const void* data = document.data();
  if (header_.token_bytes == 2) {
    narrow_.assign(document.begin(), document.end());
    data = narrow_.data();
  }
  const size_t size = document.size() * header_.token_bytes;
  file_.write(data, size);
  tokens_checksum_.add(data, size);
  header_.tokens += document.size();
  header_.source_bytes += source_bytes;
  ++header_.documents;
  starts_.push_back(header_.tokens);
}

uint64_t ShardWriter::bytes() const {
  return sizeof header_ + padded(header_.tokens * header_.token_bytes) + starts_.size() * sizeof(uint64_t);
}

ShardHeader ShardWriter::close() {
  const uint64_t size = header_.tokens * header_.token_bytes;
  const uint64_t zero = 0;
  file_.write(&zero, padded(size) - size);
  header_.index_offset = sizeof header_ + padded(size);
  const size_t index_size = starts_.size() * sizeof(uint64_t);
  file_.write(starts_.data(), index_size);
  header_.tokens_checksum = tokens_checksum_.finish();
  BlockChecksum index;
  index.add(starts_.data(), index_size);
  header_.index_checksum = index.finish();
  header_.header_checksum = header_checksum(header_);
  file_.write_at(0, &header_, sizeof header_);
  file_.close();
  return header_;
}

}  // namespace lazy
