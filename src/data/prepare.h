// `lazy data prepare`: tokenizes text into a corpus folder.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/corpus/documents.h"
#include "data/shards/corpus.h"

namespace lazy {

struct PrepareOptions {
  std::vector<std::string> inputs;   // files, folders, "-"
  std::filesystem::path output;      // a folder that does not exist yet
  bool replace = false;              // an existing corpus at `output` may be replaced
  std::string tokenizer;             // as for load_tokenizer(); empty: train one
  int64_t train_pieces = 0;          // vocabulary of the tokenizer to train
  int64_t train_bytes = 64ll << 20;  // text sampled for that training
  double validation = 0.05;          // share of the documents in the validation split
  uint64_t seed = 42;
  int64_t shard_bytes = 256ll << 20;
  int threads = 1;
  bool code = false;                       // folders contribute source code too
  std::optional<TextFormat> other_format;  // of standard input and of files with unknown endings (find_sources)
  DocumentOptions documents;
};

// The result is the same for every number of threads. The folder appears atomically, by a rename.
CorpusInfo prepare_corpus(const PrepareOptions& options);

}  // namespace lazy
