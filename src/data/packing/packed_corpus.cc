#include "data/packing/packed_corpus.h"

#include "core/error.h"

namespace lazy {
namespace fs = std::filesystem;

std::unique_ptr<PackedCorpus> PackedCorpus::open(const fs::path& corpus, const std::string& split,
                                                 const SequenceOptions& options) {
  if (options.length < (options.bos_per_sequence ? 2 : 1)) {
    fail("sequences", "length: expected at least {} tokens, found {}", options.bos_per_sequence ? 2 : 1,
         options.length);
  }
  if (options.documents_per_group < 1) {
    fail("sequences", "documents_per_group: expected at least 1, found {}", options.documents_per_group);
  }
  if (options.bos_per_document && options.eos_per_document) {
    fail("sequences",
         "documents are separated by either BOS or EOS: set bos_per_document or eos_per_document to false");
  }
  if (options.mask_position < 0 || options.mask_position > options.length) {
    fail("sequences", "mask_position: expected 0 to {}, found {}", options.length, options.mask_position);
  }
  if (options.mask_position > 0 && (options.bos_per_document || options.bos_per_sequence)) {
    fail("sequences",
         "mask_position requires that BOS occurs nowhere else: set bos_per_document and bos_per_sequence to false");
  }
  return options.packing == Packing::windows ? pack_windows(corpus, split, options)
                                             : pack_groups(corpus, split, options);
}

PackedCorpus::PackedCorpus(const fs::path& corpus, const std::string& split, const SequenceOptions& options,
                           const std::vector<Shard>& shards)
    : path_(corpus), options_(options) {
  for (const Shard& shard : shards) {
    documents_ += shard.documents();
    tokens_ += shard.tokens();
    source_bytes_ += static_cast<int64_t>(shard.header().source_bytes);
  }
  if (documents_ == 0) fail("sequences", "{}: split \"{}\" contains no documents", corpus.string(), split);
  header_ = shards.front().header();
  if (bos() < 0 && (options.bos_per_document || options.bos_per_sequence || options.mask_position > 0)) {
    fail("sequences", "{}: the tokenizer has no BOS; set bos_per_document and bos_per_sequence to false{}",
         corpus.string(), options.mask_position > 0 ? ", and mask_position to 0" : "");
  }
  if (options.eos_per_document && header_.eos_id < 0) {
    fail("sequences", "{}: the tokenizer has no EOS; set eos_per_document to false", corpus.string());
  }
  if (separates()) tokens_ += documents_;
}

void PackedCorpus::check_size(const std::string& split) const {
  if (size() > 0) return;
  fail("sequences", "{}: split \"{}\" has {} tokens in {} documents, which is less than one sequence of {} tokens",
       path_.string(), split, tokens_, documents_, options_.length);
}

}  // namespace lazy
