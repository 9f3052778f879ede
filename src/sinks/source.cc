#include "sinks/source.h"

#include <algorithm>
#include <cctype>

#include "core/error.h"
#include "core/text.h"
#include "data/sequences.h"

namespace lazy::sinks {

std::string first_prose(const std::string& text) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find("\n\n", begin), text.size());
    const std::string_view paragraph = strip(std::string_view(text).substr(begin, end - begin));
    begin = end + 2;
    if (paragraph.size() < 160) continue;
    // A capital first, then at least nine in ten characters letters, spaces, commas or full stops: no code, no lists.
    size_t plain = 0;
    for (unsigned char c : paragraph)
      plain += std::isalpha(c) || c == ' ' || c == '\n' || c == ',' || c == '.' || c == '\'' || c >= 0x80;
    if (!std::isupper(static_cast<unsigned char>(paragraph[0])) || plain * 100 < paragraph.size() * 97) continue;
    return std::string(paragraph);
  }
  return std::string(strip(text));
}

Source text_source(const Tokenizer& tokenizer, const std::string& text, const std::string& name) {
  return {name, tokenizer.encode(text), first_prose(text)};
}

Source corpus_source(const Tokenizer& tokenizer, const std::string& corpus, const std::string& split, int64_t most) {
  constexpr int64_t kBlock = 64;  // little of a group's end is lost
  SequenceOptions options;
  options.length = kBlock;
  options.bos_per_document = false;
  options.shuffle = false;
  const Sequences sequences(corpus, split, options);
  if (sequences.tokenizer_fingerprint() != tokenizer.fingerprint()) {
    fail("sinks", "{}: its tokenizer does not match the model's: expected fingerprint {:016x}, found {:016x}", corpus,
         tokenizer.fingerprint(), sequences.tokenizer_fingerprint());
  }
  Source source{corpus, {}, ""};
  std::vector<int64_t> block(kBlock);
  for (int64_t i = 0; i < sequences.size() && static_cast<int64_t>(source.ids.size()) < most; ++i) {
    sequences.read(i, block.data());
    source.ids.insert(source.ids.end(), block.begin(), block.end());
  }
  const size_t shown = std::min<size_t>(source.ids.size(), 1 << 16);
  source.prose = first_prose(to_valid_utf8(tokenizer.decode(std::span(source.ids).first(shown))));
  return source;
}

}  // namespace lazy::sinks
