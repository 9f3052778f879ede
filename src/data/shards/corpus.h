// A corpus folder: corpus.json, train-00000.bin ..., validation-00000.bin ..., tokenizer/.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "data/shards/shard.h"

namespace lazy {

inline constexpr int kCorpusVersion = 1;

struct SplitSummary {
  std::vector<std::string> shards;  // file names, in document order
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t source_bytes = 0;
};

struct CorpusInfo {
  std::map<std::string, SplitSummary> splits;  // "train", "validation"
  std::string tokenizer_kind;
  ShardTokenizer tokenizer;
  std::vector<std::string> inputs;
  uint64_t seed = 0;
  double validation = 0;
  int64_t replaced_characters = 0;  // U+FFFD put in place of invalid UTF-8
};

void write_corpus_info(const std::filesystem::path& folder, const CorpusInfo& info);
// Error names the file and the field. Also checks that the shards it names exist.
CorpusInfo read_corpus_info(const std::filesystem::path& folder);

// The shards of one split, opened, checked against corpus.json and each other. `corpus` is a folder or one shard file
// (whose split is then whatever was asked for).
std::vector<Shard> open_shards(const std::filesystem::path& corpus, const std::string& split,
                               ShardCheck check = ShardCheck::index);

}  // namespace lazy
