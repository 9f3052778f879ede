// Fuzzes the reader of shard files. The first byte of the input selects the options of the reader and whether the
// checksums in the file are corrected, because a fuzzer could not guess valid checksums. The remaining bytes are the
// file.
#include "data/shards/shard.h"

#include <cstring>

#include "data/sequences.h"
#include "target.h"

using namespace lazy;

namespace {

void set_checksums(std::string& file) {
  ShardHeader h;
  if (file.size() < sizeof h) return;
  std::memcpy(&h, file.data(), sizeof h);
  const auto sum = [&](uint64_t begin, uint64_t bytes) {
    BlockChecksum checksum;
    if (begin <= file.size() && bytes <= file.size() - begin) checksum.add(file.data() + begin, bytes);
    return checksum.finish();
  };
  if (h.tokens < file.size()) h.tokens_checksum = sum(h.tokens_offset, h.tokens * h.token_bytes);
  if (h.documents < file.size()) h.index_checksum = sum(h.index_offset, (h.documents + 1) * sizeof(uint64_t));
  h.header_checksum = header_checksum(h);
  std::memcpy(file.data(), &h, sizeof h);
}

void read_sequences(const std::filesystem::path& path, const SequenceOptions& options) {
  const Sequences sequences(path, "train", options);
  std::vector<int64_t> ids(static_cast<size_t>(options.length));
  for (int64_t n = 0; n < std::min<int64_t>(2 * sequences.size(), 64); ++n) {
    sequences.read(n, ids.data());
    for (const int64_t id : ids) {
      fuzz::require(id >= 0 && id < sequences.vocab_size(),
                    "ids are smaller than the vocabulary size, because they index the embedding");
    }
  }
}

}  // namespace

LAZY_FUZZ_TARGET(shard) {
  if (input.empty()) return;
  const auto how = static_cast<unsigned char>(input[0]);
  std::string file(input.substr(1));
  if (how & 1) set_checksums(file);
  const auto path = fuzz::put("shard.bin", file);
  SequenceOptions options;
  options.length = 1 + (how >> 4);
  options.bos_per_document = how & 2;
  options.bos_per_sequence = how & 4;
  options.shuffle = how & 8;
  options.documents_per_group = 3;
  // With Packing::windows, the reader may accept a damaged file: it checks only the header and the parts of the index
  // and of the tokens that it uses.
  try {
    options.packing = Packing::windows;
    read_sequences(path, options);
  } catch (const Error&) {
  }
  {
    const Shard shard(path);
    int64_t tokens = 0;
    for (int64_t d = 0; d < shard.documents(); ++d) tokens += static_cast<int64_t>(shard.document(d).size());
    fuzz::require(tokens == shard.tokens(), "the documents contain all tokens");
    shard.verify();
  }
  options.packing = Packing::groups;
  read_sequences(path, options);
}
