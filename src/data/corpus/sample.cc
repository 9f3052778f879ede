#include "data/corpus/sample.h"

#include <algorithm>

#include "core/random.h"

namespace lazy {

void TextSample::add(std::string_view document) {
  constexpr size_t kPiece = 64 << 10;
  while (!document.empty()) {
    size_t size = document.size();
    if (size > kPiece) {
      const size_t line = document.find('\n', kPiece);
      size = line == std::string_view::npos ? size : line + 1;
    }
    const uint64_t number = next_++;
    heap_.push_back({Random(seed_ ^ Random(number).next()).next(), number, std::string(document.substr(0, size))});
    std::push_heap(heap_.begin(), heap_.end());
    bytes_ += size;
    while (bytes_ > room_ && heap_.size() > 1) {
      std::pop_heap(heap_.begin(), heap_.end());
      bytes_ -= heap_.back().text.size();
      heap_.pop_back();
    }
    document.remove_prefix(size);
  }
}

std::vector<std::string> TextSample::take() {
  std::sort(heap_.begin(), heap_.end(), [](const Piece& a, const Piece& b) { return a.number < b.number; });
  std::vector<std::string> texts;
  for (Piece& piece : heap_) texts.push_back(std::move(piece.text));
  heap_.clear();
  return texts;
}

}  // namespace lazy
