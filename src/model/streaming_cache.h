// Selects the tokens that a streaming key-value cache retains.
#pragma once
#include <cstdint>
#include <string>

namespace lazy {

// A streaming cache (StreamingLLM, Xiao et al. 2023, arXiv 2309.17453) retains the first tokens, which act as attention
// sinks, and the latest tokens. Memory and attended length stay constant for texts of any length.
//
// After each token the cache is truncated to its first `sinks` and last `recent` tokens, so a token attends to at most
// sinks + recent + 1 keys, including its own. Positions, distances and the number of visible keys are counted within
// the cache.
//
// With `heavy` > 0, each key-value head instead retains the `heavy` tokens that have received the most attention weight
// so far, in addition to the `recent` latest tokens (as in H2O, Zhang et al. 2023, arXiv 2306.14048).
struct StreamingCache {
  int64_t sinks = 4, recent = 508, heavy = 0;
  int64_t size() const { return sinks + recent + heavy; }
  bool operator==(const StreamingCache&) const = default;
  std::string name() const;  // "streaming:4+508", "heaviest:64+64"
  // Parses the format of name(). Throws an Error that names `option` if the text is invalid.
  static StreamingCache parse(const std::string& text, const std::string& option);
};

}  // namespace lazy
