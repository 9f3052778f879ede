// GPT-2's two files.
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "data/tokenizers/bpe.h"
#include "data/tokenizers/bpe_vocabulary.h"

namespace lazy {
namespace fs = std::filesystem;

BpeDefinition read_vocab_and_merges(const fs::path& vocab, const fs::path& merges) {
  BpeDefinition definition;
  std::string vocab_text = read_file(vocab), merges_text = read_file(merges);
  const auto json = nlohmann::json::parse(vocab_text, nullptr, false);
  if (json.is_discarded()) fail("tokenizer", "{}: expected JSON", vocab.string());
  BpeVocabulary vocabulary(json, vocab.string(), definition);
  int64_t number = 0;
  for (size_t at = 0; at < merges_text.size();) {
    const size_t end = std::min(merges_text.find('\n', at), merges_text.size());
    std::string_view line(merges_text.data() + at, end - at);
    at = end + 1;
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (number == 1 && line.starts_with("#version"))) continue;
    const size_t space = line.find(' ');
    const std::string where = fmt::format("{}:{}", merges.string(), number);
    if (space == 0 || space == std::string_view::npos || space + 1 == line.size() ||
        line.find(' ', space + 1) != std::string_view::npos) {
      fail("tokenizer", "{}: expected two tokens with a space between them, found \"{}\"", where, line);
    }
    vocabulary.add_merge(line.substr(0, space), line.substr(space + 1), where);
  }
  definition.pre_tokenizer.add_split(kGpt2Pattern, "GPT-2's pattern", false);
  if (const auto id = vocabulary.find("<|endoftext|>")) {
    definition.added.push_back({.id = *id, .content = "<|endoftext|>", .special = true});
  }
  definition.files = {{"vocab.json", std::move(vocab_text)}, {"merges.txt", std::move(merges_text)}};
  read_special_tokens(vocab.parent_path(), "GPT2Tokenizer", definition);
  return definition;
}

}  // namespace lazy
