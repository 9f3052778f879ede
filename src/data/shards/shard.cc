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
  const ShardHeader empty{};  // until close(), the header is zero, so that an unfinished file is not valid
  file_.write(&empty, sizeof empty);
}

void ShardWriter::append(std::span<const int32_t> ids) {
  constexpr size_t kBlock = 1 << 18;  // tokens per block; the uint16 copy of a block stays in the CPU cache
  while (!ids.empty()) {
    const auto block = ids.first(std::min(ids.size(), kBlock));
    ids = ids.subspan(block.size());
    for (const int32_t id : block) {
      if (id < 0 || id >= header_.vocab_size) {
        fail_run("shard", "id {} is outside of the vocabulary of {} tokens", id, header_.vocab_size);
      }
    }
    const void* data = block.data();
    if (header_.token_bytes == 2) {
      narrow_.assign(block.begin(), block.end());
      data = narrow_.data();
    }
    const size_t size = block.size() * header_.token_bytes;
    file_.write(data, size);
    tokens_checksum_.add(data, size);
    header_.tokens += block.size();
  }
}

void ShardWriter::end_document(uint64_t source_bytes) {
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
    fail("shard", "{}: the document index covers the tokens {} to {}, expected 0 to {}", path.string(), starts_[0],
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
  // BOS and EOS are inserted into sequences, so their ids must be valid row indices of an embedding matrix.
  for (const auto& [field, id] : {std::pair{"bos_id", h.bos_id}, std::pair{"eos_id", h.eos_id}}) {
    if (id < -1 || id >= h.vocab_size) {
      fail("shard", "{}: {}: expected -1 (none) to {}, found {}", name, field, h.vocab_size - 1, id);
    }
  }
  expect("token_bytes", h.vocab_size <= 65536 ? 2 : 4, h.token_bytes);
  expect("tokens_offset", sizeof h, h.tokens_offset);
  // Limits both counts by the file size, so that the sums below cannot overflow.
  if (h.tokens > map_.size() || h.documents > map_.size()) {
    fail("shard", "{}: the header specifies {} tokens in {} documents, but the file has only {} bytes", name, h.tokens,
         h.documents, map_.size());
  }
  expect("index_offset", sizeof h + (h.tokens * h.token_bytes + 7) / 8 * 8, h.index_offset);
  const uint64_t size = h.index_offset + (h.documents + 1) * sizeof(uint64_t);
  if (size != map_.size()) {
    fail("shard", "{}: expected {} bytes, found {}: the file is {}", name, size, map_.size(),
         map_.size() < size ? "truncated" : "longer than its header specifies");
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
    fail("shard", "{}: id {} is outside of the vocabulary of {} tokens", name, most, header_.vocab_size);
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
    fail("shard", "{}: id {} is outside of the vocabulary of {} tokens", map_.path().string(), most,
         header_.vocab_size);
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
