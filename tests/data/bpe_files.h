// Creates a small byte-level BPE tokenizer for tests. Its tokens are the 256 bytes, and the words below together with
// all of their prefixes.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/tokenizers/unicode.h"

namespace lazy::testing_support {

struct SmallBpe {
  nlohmann::ordered_json vocab;
  std::vector<std::string> merges;  // each entry is "left right"
};

inline SmallBpe small_bpe() {
  SmallBpe bpe;
  for (int b = 0; b < 256; ++b) bpe.vocab[bytes_to_printable(std::string(1, static_cast<char>(b)))] = b;
  for (const char* word : {" the", "ing", " attention", "aaaa", "\n\n", "é"}) {
    std::string left;
    for (const char c : std::string(word)) {
      const std::string right = bytes_to_printable(std::string(1, c));
      if (!left.empty() && !bpe.vocab.contains(left + right)) {
        bpe.vocab[left + right] = bpe.vocab.size();
        bpe.merges.push_back(left + " " + right);
      }
      left += right;
    }
  }
  return bpe;
}

inline nlohmann::ordered_json small_tokenizer_json() {
  const SmallBpe bpe = small_bpe();
  const size_t end = bpe.vocab.size();
  return {{"version", "1.0"},
          {"added_tokens",
           {{{"id", end}, {"content", "<|endoftext|>"}, {"special", true}, {"normalized", false}},
            {{"id", end + 1},
             {"content", "<|pad|>"},
             {"special", true},
             {"normalized", false},
             {"lstrip", true},
             {"rstrip", true}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "Sequence"},
            {"pretokenizers",
             {{{"type", "Split"},
               {"pattern", {{"Regex", R"( ?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"}}},
               {"behavior", "Isolated"},
               {"invert", false}},
              {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}}},
          {"model", {{"type", "BPE"}, {"vocab", bpe.vocab}, {"merges", bpe.merges}}}};
}

}  // namespace lazy::testing_support
