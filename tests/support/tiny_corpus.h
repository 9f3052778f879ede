// Creates a corpus of artificial words: sentences over a small vocabulary from a fixed seed, prepared with the
// tokenizer `bytes`.
#pragma once
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "core/random.h"
#include "data/prepare.h"

namespace lazy {

inline std::string sixty_words(Random& random) {
  const char* const words[] = {"the",   "lazy", "dog",    "quick", "brown", "fox",
                               "jumps", "over", "sleeps", "under", "a",     "tree"};
  std::string line;
  for (int i = 0; i < 60; ++i) line += std::string(i ? " " : "") + words[random.below(std::size(words))];
  return line;
}

// Returns folder/corpus, which is prepared from folder/text.jsonl.
inline std::filesystem::path write_tiny_corpus(const std::filesystem::path& folder, uint64_t seed = 7) {
  Random random(seed);
  std::filesystem::create_directories(folder);
  std::ofstream text(folder / "text.jsonl");
  for (int document = 0; document < 300; ++document)
    text << nlohmann::json{{"text", sixty_words(random)}}.dump() << "\n";
  text.close();
  PrepareOptions options;
  options.inputs = {(folder / "text.jsonl").string()};
  options.output = folder / "corpus";
  options.tokenizer = "bytes";
  options.validation = 0.1;
  prepare_corpus(options);
  return folder / "corpus";
}

}  // namespace lazy
