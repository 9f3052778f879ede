#include "data/shards/shard.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"

namespace lazy {
namespace {

template <typename T>
uint64_t largest(const std::byte* data, uint64_t count) {
  const T* tokens = reinterpret_cast<const T*>(data);
  T most = 0;
  for (uint64_t i = 0; i < count; ++i) most = tokens[i] > most ? tokens[i] : most;
  return most;
}

}  // namespace

Shard::Shard(const std::filesystem::path& path, ShardCheck how) : map_(path) {
  if (map_.size() < sizeof header_) {
    fail("shard", "{}: expected at least the {} bytes of a header, found {}", path.string(), sizeof header_,
         map_.size());
  }
  std::memcpy(&header_, map_.data(), sizeof header_);
  check();
  tokens_ = map_.data() + header_.tokens_offset;
  starts_ = reinterpret_cast<const uint64_t*>(map_.data() + header_.index_offset);
  if (how == ShardCheck::header) {
    map_.expect_scattered_reads();
    return;
  }
  const size_t index_size = (header_.documents + 1) * sizeof(uint64_t);
  BlockChecksum index;
  index.add(starts_, index_size);
  if (const uint64_t found = index.finish(); found != header_.index_checksum) {
    fail("shard", "{}: checksum of the document index: expected {:016x}, found {:016x}", path.string(),
         header_.index_checksum, found);
  }
  for (uint64_t d = 0; d < header_.documents; ++d) {
    if (starts_[d] > starts_[d + 1]) {
      fail("shard", "{}: document {} starts at token {}, after its end {}", path.string(), d, starts_[d],
           starts_[d + 1]);
    }
  }
  if (starts_[0] != 0 || starts_[header_.documents] != header_.tokens) {
    fail("shard", "{}: document index spans tokens {} to {}, expected 0 to {}", path.string(), starts_[0],
         starts_[header_.documents], header_.tokens);
  }
}

void Shard::check() const {
  const std::string name = map_.path().string();
  const ShardHeader& h = header_;
  if (std::memcmp(h.magic, kShardMagic, sizeof h.magic) != 0) {
    fail("shard", "{}: not a shard of `lazy data prepare`: the file does not begin with \"LAZYSHRD\"", name);
  }
  if (h.version != kShardVersion) {
    fail("shard", "{}: version: expected {}, found {}; prepare the corpus again", name, kShardVersion, h.version);
  }
  if (const uint64_t found = header_checksum(h); found != h.header_checksum) {
    fail("shard", "{}: header checksum: expected {:016x}, found {:016x}", name, h.header_checksum, found);
  }
  const auto expect = [&](const char* field, uint64_t expected, uint64_t found) {
    if (expected != found) fail("shard", "{}: {}: expected {}, found {}", name, field, expected, found);
  };
  expect("header_bytes", sizeof h, h.header_bytes);
  if (h.vocab_size <= 0) fail("shard", "{}: vocab_size: expected a positive number, found {}", name, h.vocab_size);
  // They become tokens of sequences: outside the vocabulary they would be looked up outside the embedding.
  for (const auto& [field, id] : {std::pair{"bos_id", h.bos_id}, std::pair{"eos_id", h.eos_id}}) {
    if (id < -1 || id >= h.vocab_size) {
      fail("shard", "{}: {}: expected -1 (none) to {}, found {}", name, field, h.vocab_size - 1, id);
    }
  }
  expect("token_bytes", h.vocab_size <= 65536 ? 2 : 4, h.token_bytes);
  expect("tokens_offset", sizeof h, h.tokens_offset);
  // Sizes are compared without overflow: nothing larger than the file can be meant.
  if (h.tokens > map_.size() || h.documents > map_.size()) {
    fail("shard", "{}: header claims {} tokens in {} documents, the file has {} bytes", name, h.tokens, h.documents,
         map_.size());
  }
  expect("index_offset", sizeof h + (h.tokens * h.token_bytes + 7) / 8 * 8, h.index_offset);
  const uint64_t size = h.index_offset + (h.documents + 1) * sizeof(uint64_t);
  if (size != map_.size()) {
    fail("shard", "{}: expected {} bytes, found {}: the file is {}", name, size, map_.size(),
         map_.size() < size ? "cut short" : "longer than its header says");
  }
}

void Shard::verify() const {
  const std::string name = map_.path().string();
  BlockChecksum sum;
  sum.add(tokens_, header_.tokens * header_.token_bytes);
  if (const uint64_t found = sum.finish(); found != header_.tokens_checksum) {
    fail("shard", "{}: checksum of the tokens: expected {:016x}, found {:016x}", name, header_.tokens_checksum, found);
  }
  const uint64_t most = header_.token_bytes == 2 ? largest<uint16_t>(tokens_, header_.tokens)
                                                 : largest<uint32_t>(tokens_, header_.tokens);
  if (header_.tokens > 0 && most >= static_cast<uint64_t>(header_.vocab_size)) {
    fail("shard", "{}: id {} is outside the vocabulary of {}", name, most, header_.vocab_size);
  }
}

void Shard::read(int64_t begin, int64_t count, int64_t* out) const {
  if (header_.token_bytes == 2) {
    const auto* tokens = reinterpret_cast<const uint16_t*>(tokens_) + begin;
    for (int64_t i = 0; i < count; ++i) out[i] = tokens[i];
  } else {
    const auto* tokens = reinterpret_cast<const uint32_t*>(tokens_) + begin;
    for (int64_t i = 0; i < count; ++i) out[i] = tokens[i];
  }
}

Shard::Range Shard::range(int64_t d) const {
  if (d >= documents() || starts_[d] > starts_[d + 1] || starts_[d + 1] > header_.tokens) fail_index(d);
  return {start(d), start(d + 1)};
}

void Shard::fail_index(int64_t d) const {
  fail("shard", "{}: the document index is damaged at document {}; prepare the corpus again", map_.path().string(), d);
}

void Shard::read_checked(int64_t begin, int64_t count, int64_t* out) const {
  map_.read_ahead(header_.tokens_offset + static_cast<uint64_t>(begin) * header_.token_bytes,
                  static_cast<uint64_t>(count) * header_.token_bytes);
  read(begin, count, out);
  const int64_t most = count > 0 ? *std::max_element(out, out + count) : 0;
  if (most >= header_.vocab_size) {
    fail("shard", "{}: id {} is outside the vocabulary of {}", map_.path().string(), most, header_.vocab_size);
  }
}

std::vector<int32_t> Shard::document(int64_t d) const {
  if (d < 0 || d >= documents()) {
    fail("shard", "{}: document {}: expected 0 to {}", map_.path().string(), d, documents() - 1);
  }
  std::vector<int64_t> wide(start(d + 1) - start(d));
  read(start(d), static_cast<int64_t>(wide.size()), wide.data());
  return {wide.begin(), wide.end()};
}

}  // namespace lazy
