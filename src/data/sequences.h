// Training sequences from shards: corpora are packed into sequences and mixed by weight. The order is a function of the
// seed and the index, so a training run can resume if it stores only the index. docs/guides/data.md describes the
// guarantees of each order.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace lazy {

enum class Packing {
  // Shuffled documents are concatenated in groups, which are cut into sequences; the sequences are shuffled. Memory: 4
  // bytes per document and per sequence.
  groups,
  // The shards are cut into windows, which are read in the order of a keyed permutation. Memory does not depend on the
  // number of documents.
  windows,
};

struct SequenceOptions {
  int64_t length = 0;  // tokens per sequence
  uint64_t seed = 42;
  bool bos_per_document = true;   // insert BOS before each document
  bool eos_per_document = false;  // insert EOS instead of BOS before each document
  bool bos_per_sequence = false;  // insert BOS at the start of each sequence
  int64_t mask_position = 0;      // 1-based position at which BOS replaces the token (the paper's Mask@k); 0: disabled
  int64_t documents_per_group = 2048;
  bool shuffle = true;  // false: use corpus order, for validation
  Packing packing = Packing::groups;
};

// One or more corpora (folders or shard files of `lazy data prepare`) and the share of sequences from each.
struct CorpusMix {
  CorpusMix() = default;
  CorpusMix(std::filesystem::path corpus) : paths{std::move(corpus)} {}
  CorpusMix(const std::string& corpus) : paths{corpus} {}
  std::vector<std::filesystem::path> paths;
  // Weights in any unit. Empty: proportional to the sizes of the corpora, so that the epochs of all corpora end
  // together.
  std::vector<double> weights;
  std::string string() const;  // the paths as text, for messages
};

// Provides the training sequences. The shards are memory-mapped. Thread-safe.
class Sequences {
 public:
  Sequences(const CorpusMix& corpora, const std::string& split, const SequenceOptions& options);
  ~Sequences();
  // Number of sequences before a sequence is repeated for the first time. For a single corpus, this is the length of
  // one epoch. For a mixture, it is the position at which some corpus starts its second epoch.
  int64_t size() const;
  // Reads sequence `index` of the endless stream and writes options.length ids to `out`. Every epoch of a corpus has a
  // different order.
  void read(int64_t index, int64_t* out) const;
  int64_t tokens() const;          // number of tokens in the split, including BOS or EOS
  double bytes_per_token() const;  // bytes of source text per token, to convert losses to bits per byte
  int64_t vocab_size() const;
  uint64_t tokenizer_fingerprint() const;
  std::filesystem::path tokenizer_path() const;  // folder that contains the tokenizer of the shards

  struct Part {
    std::string name;  // last component of the path, with a number if two corpora have the same name
    std::filesystem::path path;
    double share = 1;       // share of the mixture's sequences that come from this corpus
    int64_t sequences = 0;  // number of sequences in an epoch
    int64_t tokens = 0;     // number of tokens in the split
    double bytes_per_token = 0;
  };
  const std::vector<Part>& parts() const;
  // Returns, for each part, how many of the first `index` sequences of the stream belong to it. This number divided by
  // Part::sequences is the number of epochs of the part.
  std::vector<int64_t> counts(int64_t index) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lazy
