// Fuzzes the reader of a folder's special tokens. The input consists of the files tokenizer_config.json,
// special_tokens_map.json, added_tokens.json and config.json, followed by a regular expression as in a tokenizer.json.
// If the part of a file is empty, the folder does not contain this file.
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
  if (const auto pattern = pcre2_from_oniguruma(files[4])) {
    fuzz::require(!pattern->empty(), "a translated pattern is not empty");
    PreTokenizer splits;
    // add_split() returns false for patterns that PCRE2 rejects, for example ranges in reverse order.
    if (splits.add_split(files[4], "pattern", false)) {
      std::string joined;
      const std::string text = "It's 12 x\u00e9  \n<\u4e2d>";
      splits.run(text, [&](std::string_view word) {
        fuzz::require(!word.empty(), "words are not empty");
        joined += word;
      });
      fuzz::require(joined == text, "the concatenated words are the text");
    }
  }
  // The token table belongs to a vocabulary of the letters "a" to "z" with the ids 0 to 25.
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
    fuzz::require(ids.insert(token.id).second && texts.insert(token.content).second,
                  "each id and each text occurs once");
    fuzz::require(table.is_special(token.id) == token.special, "is_special() matches the flag of the token");
  }
  for (const auto& id : {table.bos, table.eos})
    fuzz::require(!id || *id >= 0, "the ids of BOS and EOS are not negative");
}
