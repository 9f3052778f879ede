#include "sinks/text_source.h"

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
    // Accept paragraphs that start with a capital letter and consist of at least 97 % letters, spaces, commas and full
    // stops. This excludes code and lists.
    size_t plain = 0;
    for (unsigned char c : paragraph)
      plain += std::isalpha(c) || c == ' ' || c == '\n' || c == ',' || c == '.' || c == '\'' || c >= 0x80;
    if (!std::isupper(static_cast<unsigned char>(paragraph[0])) || plain * 100 < paragraph.size() * 97) continue;
    return std::string(paragraph);
  }
  return std::string(strip(text));
}

TextSource text_source(const Tokenizer& tokenizer, const std::string& text, const std::string& name) {
  return {name, tokenizer.encode(text), first_prose(text)};
}

TextSource corpus_source(const Tokenizer& tokenizer, const std::string& corpus, const std::string& split,
                         int64_t most) {
  constexpr int64_t kBlock = 64;  // incomplete blocks are dropped, so small blocks lose few tokens
  SequenceOptions options;
  options.length = kBlock;
  options.bos_per_document = false;
  options.shuffle = false;
  const Sequences sequences(corpus, split, options);
  if (sequences.tokenizer_fingerprint() != tokenizer.fingerprint()) {
    fail("sinks", "{}: the corpus does not use the tokenizer of the model: expected fingerprint {:016x}, found {:016x}",
         corpus, tokenizer.fingerprint(), sequences.tokenizer_fingerprint());
  }
  TextSource source{corpus, {}, ""};
  std::vector<int64_t> block(kBlock);
  for (int64_t i = 0; i < sequences.size() && static_cast<int64_t>(source.ids.size()) < most; ++i) {
    sequences.read(i, block.data());
    source.ids.insert(source.ids.end(), block.begin(), block.end());
  }
  const size_t shown = std::min<size_t>(source.ids.size(), 1 << 16);
  source.prose = first_prose(
      to_valid_utf8(tokenizer.decode(without_special_tokens(tokenizer, std::span(source.ids).first(shown)))));
  return source;
}

std::vector<std::vector<int64_t>> spread_samples(const std::vector<int32_t>& ids, int64_t length, int64_t most,
                                                 std::optional<int32_t> bos) {
  const int64_t from_text = length - (bos ? 1 : 0);
  std::vector<std::vector<int64_t>> samples;
  if (from_text < 1) return samples;
  const int64_t blocks = static_cast<int64_t>(ids.size()) / from_text, count = std::min(blocks, most);
  for (int64_t n = 0; n < count; ++n) {
    const int64_t block = n * blocks / count;
    std::vector<int64_t> sample;
    if (bos) sample.push_back(*bos);
    const auto begin = ids.begin() + block * from_text;
    sample.insert(sample.end(), begin, begin + from_text);
    samples.push_back(std::move(sample));
  }
  return samples;
}

}  // namespace lazy::sinks
