// Speed of encoding on one thread, beside the `tokenizers` package (tokenizer.json) or `sentencepiece` (.model) run by
// a Python interpreter that has it.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace lazy::benchmarks {

struct TokenizerBenchmark {
  std::string tokenizer;           // as load_tokenizer takes it
  std::string text;                // file; its lines are the documents
  std::string python = "python3";  // runs the peer
  int repeats = 5;                 // the fastest of this many, for either
};

// Prints a table and returns the same figures. RunError when the peer's ids differ from ours; a peer that is not there
// is said, and only ours is timed.
nlohmann::json run_tokenizer(const TokenizerBenchmark& options);

}  // namespace lazy::benchmarks
