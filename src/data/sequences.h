// Training sequences from shards: corpora are packed into sequences and mixed by weight, in an order that is a function
// of the seed and the index. Resuming needs the index alone. docs/data.md describes the guarantees of each order.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace lazy {

enum class Packing {
  groups,   // shuffled documents, concatenated in groups; shuffled sequences. 4 bytes a document and a sequence
  windows,  // windows of the shards in a keyed permutation. Memory independent of the number of documents
};

struct SequenceOptions {
  int64_t length = 0;  // tokens a sequence
  uint64_t seed = 42;
  bool bos_per_document = true;   // BOS before each document
  bool eos_per_document = false;  // EOS before each document instead of BOS
  bool bos_per_sequence = false;  // BOS also at the start of every sequence
  int64_t mask_position = 0;      // 1-based position that holds BOS instead of its token (Mask@k); 0: none
  int64_t documents_per_group = 2048;
  bool shuffle = true;  // false: corpus order, for validation
  Packing packing = Packing::groups;
};

// One or more corpora (folders or shard files of `lazy data prepare`) with the share of sequences of each.
struct CorpusMix {
  CorpusMix() = default;
  CorpusMix(std::filesystem::path corpus) : paths{std::move(corpus)} {}
  CorpusMix(const std::string& corpus) : paths{corpus} {}
  std::vector<std::filesystem::path> paths;
  std::vector<double> weights;  // in any unit; empty: by size, so that all epochs end together
  std::string string() const;   // the paths, for messages
};

// The shards are memory-mapped. Thread-safe.
class Sequences {
 public:
  Sequences(const CorpusMix& corpora, const std::string& split, const SequenceOptions& options);
  ~Sequences();
  // Sequences before the first repetition: one epoch of a single corpus; for a mixture, up to where the first of its
  // corpora starts its second epoch.
  int64_t size() const;
  // Sequence `index` of the endless stream; every epoch of a corpus has its own order. Writes options.length ids to
  // `out`.
  void read(int64_t index, int64_t* out) const;
  int64_t tokens() const;          // tokens in the split, BOS included
  double bytes_per_token() const;  // source text bytes per token of the stream, for bits per byte
  int64_t vocab_size() const;
  uint64_t tokenizer_fingerprint() const;
  std::filesystem::path tokenizer_path() const;  // folder with the tokenizer that made the shards

  struct Part {
    std::string name;  // last component of the path, numbered where two corpora share it
    std::filesystem::path path;
    double share = 1;       // of the sequences
    int64_t sequences = 0;  // in an epoch
    int64_t tokens = 0;     // in the split
    double bytes_per_token = 0;
  };
  const std::vector<Part>& parts() const;
  // Sequences of each part among the first `index` of the stream; divided by Part::sequences, its epochs.
  std::vector<int64_t> counts(int64_t index) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lazy
