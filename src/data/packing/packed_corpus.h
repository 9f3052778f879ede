// One corpus that is cut into sequences of a fixed length, and the endless stream of these sequences for training.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "core/random.h"
#include "data/sequences.h"
#include "data/shards/shard.h"

namespace lazy {

class PackedCorpus {
 public:
  static std::unique_ptr<PackedCorpus> open(const std::filesystem::path& corpus, const std::string& split,
                                            const SequenceOptions& options);
  virtual ~PackedCorpus() = default;
  virtual int64_t size() const = 0;  // number of sequences in an epoch
  // Writes the ids of sequence `index` of the endless stream to `out`. Thread-safe.
  virtual void read(int64_t index, int64_t* out) const = 0;
  int64_t tokens() const { return tokens_; }  // number of tokens in the split, including BOS or EOS separators
  int64_t source_bytes() const { return source_bytes_; }
  const ShardHeader& header() const { return header_; }  // header of the first shard
  const std::filesystem::path& path() const { return path_; }

 protected:
  // Adds the token and document counts of the shard headers and checks that the options are valid for these shards.
  PackedCorpus(const std::filesystem::path& corpus, const std::string& split, const SequenceOptions& options,
               const std::vector<Shard>& shards);
  // Throws Error if an epoch has no sequence.
  void check_size(const std::string& split) const;
  // Returns the number of tokens of a sequence, without the BOS at its start.
  int64_t payload() const { return options_.length - (options_.bos_per_sequence ? 1 : 0); }
  int64_t bos() const { return header_.bos_id; }
  // Whether a separator (BOS or EOS) precedes each document. separator() returns its id.
  bool separates() const { return options_.bos_per_document || options_.eos_per_document; }
  int64_t separator() const { return options_.eos_per_document ? header_.eos_id : header_.bos_id; }
  std::filesystem::path path_;
  SequenceOptions options_;
  ShardHeader header_{};
  int64_t documents_ = 0, tokens_ = 0, source_bytes_ = 0;
};

// The two implementations; SequenceOptions::packing selects one of them.
std::unique_ptr<PackedCorpus> pack_groups(const std::filesystem::path&, const std::string& split,
                                          const SequenceOptions&);
std::unique_ptr<PackedCorpus> pack_windows(const std::filesystem::path&, const std::string& split,
                                           const SequenceOptions&);

// Returns the seed of random stream number `stream`. Different streams that are derived from one seed are independent.
inline uint64_t derive_seed(uint64_t seed, uint64_t stream) { return Random(seed ^ Random(stream).next()).next(); }

}  // namespace lazy
