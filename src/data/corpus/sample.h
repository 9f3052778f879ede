// A sample of a corpus that depends on the seed alone, in bounded memory: the tokenizer's training text.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lazy {

// Cuts documents into pieces of about 64 KiB at line ends, gives every piece a random number, and keeps those with
// the smallest numbers that fit.
class TextSample {
 public:
  TextSample(uint64_t seed, uint64_t bytes) : seed_(seed), room_(bytes) {}
  void add(std::string_view document);
  // The pieces kept, in the order of the corpus.
  std::vector<std::string> take();

 private:
  struct Piece {
    uint64_t rank, number;
    std::string text;
    bool operator<(const Piece& other) const { return rank != other.rank ? rank < other.rank : number < other.number; }
  };
  uint64_t seed_, room_, bytes_ = 0, next_ = 0;
  std::vector<Piece> heap_;  // the largest rank first
};

}  // namespace lazy
