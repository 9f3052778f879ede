// A corpus folder. It contains corpus.json, train-00000.bin ..., validation-00000.bin ..., and tokenizer/.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/shards/shard.h"

namespace lazy {

inline constexpr int kCorpusVersion = 1;

struct SplitSummary {
  std::vector<std::string> shards;  // file names in document order
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t source_bytes = 0;
};

struct CorpusInfo {
  std::map<std::string, SplitSummary> splits;  // keys: "train", "validation"
  std::string tokenizer_kind;
  ShardTokenizer tokenizer;
  std::vector<std::string> inputs;
  uint64_t seed = 0;
  double validation = 0;
  int64_t replaced_characters = 0;  // number of U+FFFD characters written for invalid UTF-8
};

void write_corpus_info(const std::filesystem::path& folder, const CorpusInfo& info);
// Reads corpus.json of a folder. Errors contain the file and the field.
CorpusInfo read_corpus_info(const std::filesystem::path& folder);

// Opens the shards of one split and checks that they match corpus.json. `corpus` is a folder, or a single shard file,
// for which `split` is ignored.
std::vector<Shard> open_shards(const std::filesystem::path& corpus, const std::string& split,
                               ShardCheck check = ShardCheck::index);

// Writes one split as shards of bounded size.
class SplitWriter {
 public:
  // Writes FOLDER/NAME-00000.bin and so on. Documents are never cut: a shard ends with the document that reaches
  // `shard_bytes`.
  SplitWriter(std::filesystem::path folder, std::string name, const ShardTokenizer& tokenizer, uint64_t shard_bytes)
      : folder_(std::move(folder)), name_(std::move(name)), tokenizer_(tokenizer), shard_bytes_(shard_bytes) {}
  void add(std::span<const int32_t> document, uint64_t source_bytes) {
    append(document);
    end_document(source_bytes);
  }
  // Writes a document in parts: append() adds ids to the current document.
  void append(std::span<const int32_t> ids);
  void end_document(uint64_t source_bytes);
  void close();
  const SplitSummary& summary() const { return summary_; }

 private:
  std::filesystem::path folder_;
  std::string name_;
  ShardTokenizer tokenizer_;
  uint64_t shard_bytes_;
  std::optional<ShardWriter> shard_;
  SplitSummary summary_;
};

}  // namespace lazy
