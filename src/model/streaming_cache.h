// Which keys a streaming cache keeps (StreamingLLM, Xiao et al. 2023, arXiv 2309.17453): the first few tokens, on which
// much attention rests, and the latest ones. What a model trained on short texts then sees of an endless one never
// grows.
#pragma once
#include <cstdint>
#include <string>

namespace lazy {

// After each token the cache is cut to its first `sinks` and last `recent` tokens, so a token sees at most
// sinks + recent + 1 keys, its own among them. Positions, distances and the visible count go by the place in the cache.
struct StreamingCache {
  int64_t sinks = 4, recent = 508;
  int64_t size() const { return sinks + recent; }
  bool operator==(const StreamingCache&) const = default;
  std::string name() const;  // "streaming:4+508"
  // The name read back. Error naming `option`.
  static StreamingCache parse(const std::string& text, const std::string& option);
};

}  // namespace lazy
