// Which tokens a streaming key-value cache keeps.
#pragma once
#include <cstdint>
#include <string>

namespace lazy {

// The tokens kept by a streaming cache (StreamingLLM, Xiao et al. 2023, arXiv 2309.17453): the first ones, which act as
// attention sinks, and the latest ones. Memory and attended length stay constant for unbounded text.
//
// After each token the cache is truncated to its first `sinks` and last `recent` tokens, so a token attends to at most
// sinks + recent + 1 keys including its own. Positions, distances and the visible count are those within the cache.
//
// With `heavy` it keeps instead, of every key-value head, the tokens to which queries have given the most weight so
// far, beside the last ones (as H2O, Zhang et al. 2023, arXiv 2306.14048).
struct StreamingCache {
  int64_t sinks = 4, recent = 508, heavy = 0;
  int64_t size() const { return sinks + recent + heavy; }
  bool operator==(const StreamingCache&) const = default;
  std::string name() const;  // "streaming:4+508", "heaviest:64+64"
  // Parses the format of name(). Error naming `option`.
  static StreamingCache parse(const std::string& text, const std::string& option);
};

}  // namespace lazy
