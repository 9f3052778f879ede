// The special tokens of a folder: tokenizer_config.json, special_tokens_map.json, added_tokens.json, config.json (each
// absent when empty); then a regular expression of a tokenizer.json.
#include "data/tokenizers/token_table.h"

#include <set>

#include "data/tokenizers/pretokenizer.h"
#include "data/tokenizers/regex_syntax.h"
#include "target.h"

using namespace lazy;

LAZY_FUZZ_TARGET(token_table) {
  const auto files = fuzz::parts(input, 5);
  const char* const names[] = {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json"};
  for (size_t i = 0; i < 4; ++i) {
    std::filesystem::remove(fuzz::scratch() / names[i]);
    if (!files[i].empty()) fuzz::put(names[i], files[i]);
  }
  // A pattern that is translated is one that PCRE2 compiles, but for lookbehinds of variable length.
  if (const auto pattern = pcre2_from_oniguruma(files[4])) {
    fuzz::require(!pattern->empty(), "no empty pattern is translated");
    PreTokenizer splits;
    if (files[4].find("(?<") == std::string::npos) {
      fuzz::require(splits.add_split(files[4], "pattern", false), "PCRE2 compiles " + *pattern);
    }
  }
  // A vocabulary of "a" to "z" at 0 to 25.
  const TokenTable table =
      SpecialTokens(fuzz::scratch())
          .resolve(
              {{.id = 26, .content = "<s>", .special = true}},
              [](const std::string& text) -> std::optional<int32_t> {
                if (text.size() != 1 || text[0] < 'a' || text[0] > 'z') return std::nullopt;
                return text[0] - 'a';
              },
              [](int32_t id) { return id < 26 ? std::string(1, static_cast<char>('a' + id)) : ""; }, 26);
  std::set<int32_t> ids;
  std::set<std::string> texts;
  for (const AddedToken& token : table.added) {
    fuzz::require(token.id >= 0 && !token.content.empty(), "added tokens have an id and a text");
    fuzz::require(ids.insert(token.id).second && texts.insert(token.content).second, "each id and text once");
    fuzz::require(table.is_special(token.id) == token.special, "special tokens are indexed");
  }
  for (const auto& id : {table.bos, table.eos}) fuzz::require(!id || *id >= 0, "BOS and EOS are ids");
}
