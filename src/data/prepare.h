// `lazy data prepare`: text in, a corpus folder out.
#pragma once
#include <cstdint>
#include <filesystem>
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
  double validation = 0.05;          // share of the documents held out
  uint64_t seed = 42;
  int64_t shard_bytes = 256ll << 20;
  int threads = 1;
  TextFormat other_format = TextFormat::plain;  // of standard input and of files with unknown endings
  DocumentOptions documents;
};

// The outcome is the same for every number of threads. The folder appears complete, by a rename, or not at all.
CorpusInfo prepare_corpus(const PrepareOptions& options);

}  // namespace lazy
