// From shards to training sequences, in an order that depends on the seed and the position alone: corpora are packed
// into sequences (SPEC section 1, or windows for what does not fit into memory) and mixed by weight. Resuming is a
// number: no re-reading. docs/data.md says what each order guarantees.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace lazy {

enum class Packing {
  groups,   // documents shuffled, joined in groups, cut; sequences shuffled. 4 bytes a document and a sequence
  windows,  // shards cut as they are, the windows taken in a keyed permutation. Memory by the shard
};

struct SequenceOptions {
  int64_t length = 0;  // tokens a sequence
  uint64_t seed = 42;
  bool bos_per_document = true;   // decision A3
  bool eos_per_document = false;  // EOS parts the documents, in the place of BOS
  bool bos_per_sequence = false;  // BOS first in every sequence as well: the recipe in which a sink emerges
  int64_t mask_position =
      0;  // from 1: this place of every sequence holds BOS instead of its token (Mask@k); 0: none does
  int64_t documents_per_group = 2048;
  bool shuffle = true;  // false: corpus order, for validation
  Packing packing = Packing::groups;
};

// A corpus folder or shard file of `lazy data prepare`, or several with the share of sequences that each contributes.
struct CorpusMix {
  CorpusMix() = default;
  CorpusMix(std::filesystem::path corpus) : paths{std::move(corpus)} {}
  CorpusMix(const std::string& corpus) : paths{corpus} {}
  std::vector<std::filesystem::path> paths;
  std::vector<double> weights;  // in any unit; empty: by size, so that all end an epoch together
  std::string string() const;   // the paths, for messages
};

// The shards are memory-mapped. Thread-safe.
class Sequences {
 public:
  Sequences(const CorpusMix& corpora, const std::string& split, const SequenceOptions& options);
  ~Sequences();
  // Sequences of which none comes twice: an epoch of one corpus; of a mixture as many as come before one of its corpora
  // begins again.
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
    std::string name;  // last part of the path; with a number where two corpora have the same
    std::filesystem::path path;
    double share = 1;       // of the sequences
    int64_t sequences = 0;  // in an epoch
    int64_t tokens = 0;     // in the split
    double bytes_per_token = 0;
  };
  const std::vector<Part>& parts() const;
  // Sequences of each part among the first `index` of the stream. Over Part::sequences these are its epochs.
  std::vector<int64_t> counts(int64_t index) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lazy
