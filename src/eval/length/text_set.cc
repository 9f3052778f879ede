#include "eval/length/text_set.h"

#include <algorithm>

#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "data/shards/corpus.h"
#include "eval/data/rows.h"
#include "eval/prepare.h"
#include "eval/python_text.h"
#include "eval/tasks/question.h"
#include "model/tokenizer_match.h"

namespace lazy::eval::length {

TextSource wikitext_source(const std::filesystem::path& data, const std::optional<double>& limit) {
  TextSource source{.name = "wikitext", .path = data.string()};
  const Task task = find_task("wikitext");
  std::vector<Row> rows = read_rows(task, data);
  rows.resize(static_cast<size_t>(limited(static_cast<int64_t>(rows.size()), limit)));
  for (const Row& row : rows) {
    Question page = make_question(task, row, "");
    source.texts.push_back(std::move(page.text));
    source.words.push_back(page.words);
  }
  return source;
}

TextSource file_source(const std::filesystem::path& text) {
  TextSource source{.name = "heldout", .path = text.string()};
  source.texts.push_back(to_valid_utf8(read_file(text)));
  if (strip(source.texts[0]).empty()) fail("eval", "{}: expected text, found an empty file", text.string());
  source.words.push_back(python_word_count(source.texts[0]));
  return source;
}

TextSource corpus_source(const std::filesystem::path& corpus, const std::string& split,
                         const std::optional<double>& limit) {
  TextSource source{.name = "heldout", .path = corpus.string()};
  const std::vector<Shard> shards = open_shards(corpus, split);
  int64_t available = 0;
  for (const Shard& shard : shards) available += shard.documents();
  const auto wanted = static_cast<size_t>(limited(available, limit));
  for (const Shard& shard : shards) {
    source.tokenizer_fingerprint = shard.header().tokenizer_fingerprint;
    source.vocab_size = shard.header().vocab_size;
    for (int64_t d = 0; d < shard.documents() && source.ids.size() < wanted; ++d)
      source.ids.push_back(shard.document(d));
  }
  if (source.ids.empty()) fail("eval", "{}: the {} split has no documents", corpus.string(), split);
  return source;
}

TextSet tokenize(const TextSource& source, const Tokenizer& tokenizer, const ModelConfig& config) {
  TextSet set;
  if (!source.ids.empty()) {
    check_tokenizer(config, source.tokenizer_fingerprint, source.vocab_size, source.path);
    set.documents = source.ids;
  } else {
    for (const std::string& text : source.texts) set.documents.push_back(tokenizer.encode(text));
    set.words = source.words;
  }
  for (const auto& document : set.documents) set.tokens += static_cast<int64_t>(document.size());
  return set;
}

}  // namespace lazy::eval::length
