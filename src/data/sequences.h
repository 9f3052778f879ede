// From shards to training sequences, in an order that depends on the seed and the position alone (SPEC section 1):
// documents are shuffled, BOS stands before each, groups of 2048 documents are concatenated and cut into sequences,
// each group's tail is dropped, and the sequences are shuffled. Resuming is a number: no re-reading.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace lazy {

struct SequenceOptions {
  int64_t length = 0;  // tokens a sequence
  uint64_t seed = 42;
  bool bos_per_document = true;   // decision A3
  bool bos_per_sequence = false;  // BOS first in every sequence as well: the recipe in which a sink emerges
  int64_t documents_per_group = 2048;
  bool shuffle = true;  // false: corpus order, for validation
};

// A corpus folder or shard file(s) of `lazy data prepare`, memory-mapped.
class Sequences {
 public:
  Sequences(const std::filesystem::path& corpus, const std::string& split, const SequenceOptions& options);
  ~Sequences();
  int64_t size() const;  // sequences in an epoch
  // Sequence `index` of the endless stream (index / size() is the epoch; every epoch has its own order).
  // Writes options.length ids to `out`.
  void read(int64_t index, int64_t* out) const;
  int64_t tokens() const;          // tokens in the split, BOS included
  double bytes_per_token() const;  // source text bytes per token, for bits per byte
  int64_t vocab_size() const;
  uint64_t tokenizer_fingerprint() const;
  std::filesystem::path tokenizer_path() const;  // folder with the tokenizer that made the shards

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lazy
