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
  std::vector<std::string> inputs;   // files, folders, or "-" for standard input
  std::filesystem::path output;      // a folder that does not exist yet
  bool replace = false;              // whether an existing corpus at `output` may be replaced
  std::string tokenizer;             // argument of load_tokenizer(); empty: train a tokenizer
  int64_t train_pieces = 0;          // vocabulary size of the tokenizer to train
  int64_t train_bytes = 64ll << 20;  // number of bytes of text to sample for training the tokenizer
  double validation = 0.05;          // fraction of the documents that go to the validation split
  uint64_t seed = 42;
  int64_t shard_bytes = 256ll << 20;
  int threads = 1;
  bool code = false;  // also read source code from folders
  // Format of standard input and of files with unknown extensions (argument `other` of find_sources).
  std::optional<TextFormat> other_format;
  DocumentOptions documents;
};

// The result does not depend on the number of threads. The folder is published atomically by a rename.
CorpusInfo prepare_corpus(const PrepareOptions& options);

}  // namespace lazy
