// Implements load_tokenizer(): selects the files of a folder and compares tokenizer.json with tokenizer.model.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "core/checksum.h"
#include "core/error.h"
#include "core/file.h"
#include "core/hub_name.h"
#include "core/log.h"
#include "data/tokenizer.h"
#include "data/tokenizers/bpe.h"
#include "data/tokenizers/library_tokenizer.h"
#include "data/tokenizers/sentencepiece.h"
#include "data/tokenizers/simple_tokenizers.h"
#include "data/tokenizers/tokenizer_json.h"
#include "data/tokenizers/transformers_files.h"
#include "data/tokenizers/vocabulary.h"

namespace lazy {
namespace fs = std::filesystem;

namespace {

// Texts for the comparison of the two tokenizer files of a folder: words, digits, punctuation, runs of white space,
// line ends, several scripts, combining characters, emoji and code.
constexpr const char* kProbeTexts[] = {
    "The quick brown fox's tail isn't 12345 cm; 3.14 of 1,000,000 (2026-01-31) = 50% \"quoted\" -- really?!",
    " one leading space",
    "   runs  of   spaces    and\ttabs\t\tthen trailing  ",
    "\nline ends\n\nand\r\nmore\n\n\n  indented\n",
    "Ünïcode naïve Straße Ελληνικά Кириллица 中文字 日本語 한국어 ไทย हिन्दी עברית العربية e\u0301 \u00bd \u00b2 \u00a0 "
    "\u3000 "
    "\u200b",
    "emoji \U0001F642 \U0001F469\u200D\U0001F680 symbols \u2192 \u20ac \u00a9 \u2122",
    "def f(x_1):\n    return [x ** 2 for x in {1: 'a'}]  # <tag/> http://example.org/?q=1&r=a_b\n\treturn\n",
};

// Returns the probe texts and, for each added token of tokenizer.json, a text that contains it. Special pieces of
// tokenizer.model are excluded because SentencePiece encodes "<s>" in a text as ordinary characters.
std::vector<std::string> probe_texts(const nlohmann::json& added_tokens, const SentencePieceModel& model) {
  std::vector<std::string> texts(std::begin(kProbeTexts), std::end(kProbeTexts));
  for (const nlohmann::json& token : added_tokens) {
    const auto id = token.at("id").get<int32_t>();
    if (id < model.vocab_size() && model.is_special(id)) continue;
    texts.push_back("before " + token.at("content").get<std::string>() + " after");
  }
  return texts;
}

// The tokenizer.json of a folder whose tokenizer.model encodes the probe texts in the same way. It reports the
// fingerprint of tokenizer.model, so that corpora and models prepared with tokenizer.model still match. save() writes
// both files.
class EquivalentTokenizer final : public Tokenizer {
 public:
  EquivalentTokenizer(std::unique_ptr<Tokenizer> json, uint64_t fingerprint, std::string model)
      : json_(std::move(json)), fingerprint_(fingerprint), model_(std::move(model)) {
    table_ = json_->tokens();
  }
  std::vector<int32_t> encode(std::string_view text) const override { return json_->encode(text); }
  std::vector<std::vector<int32_t>> encode_batch(std::span<const std::string> texts) const override {
    return json_->encode_batch(texts);
  }
  size_t cut(std::string_view text, size_t at) const override { return json_->cut(text, at); }
  std::string decode(std::span<const int32_t> ids) const override { return json_->decode(ids); }
  std::string piece(int32_t id) const override { return json_->piece(id); }
  std::string next_piece(std::span<const int32_t> previous, int32_t id) const override {
    return json_->next_piece(previous, id);
  }
  int64_t vocab_size() const override { return json_->vocab_size(); }
  uint64_t fingerprint() const override { return fingerprint_; }
  std::string kind() const override { return json_->kind(); }
  bool finds_special_tokens() const override { return json_->finds_special_tokens(); }
  void save(const fs::path& directory) const override {
    json_->save(directory);
    write_file_atomic(directory / "tokenizer.model", model_);
  }

 private:
  std::unique_ptr<Tokenizer> json_;
  uint64_t fingerprint_;
  std::string model_;
};

// Logs the warning only once per folder and process.
void warn_once(const fs::path& folder, const std::string& text) {
  static std::mutex mutex;
  static std::set<fs::path> warned;
  const std::lock_guard lock(mutex);
  if (warned.insert(folder).second) log::warn("tokenizer: {}", text);
}

std::unique_ptr<Tokenizer> from_json(const TokenizerJson& file) {
  const SpecialTokens special(file.path.parent_path());
  try {
    if (file.is_sentencepiece()) return make_sentencepiece_json(file, special);
    return make_bpe_tokenizer(read_byte_level(file, special));
  } catch (const NotNative& error) {
    return make_library_tokenizer(file, special, error.reason);
  }
}

// Combines tokenizer.model with the other files of its folder, which may define other BOS and EOS tokens and may add
// tokens to the vocabulary of tokenizer.model. As in SentencePiece, names of control pieces in a text are encoded as
// ordinary characters. Added tokens are recognized.
class SentencePieceFolder final : public Tokenizer {
 public:
  SentencePieceFolder(std::unique_ptr<SentencePieceModel> model, const SpecialTokens& special)
      : model_(std::move(model)), files_(special.files()) {
    table_ = special.resolve(
        model_->tokens().added, [&](const std::string& text) { return model_->find_piece(text); },
        [&](int32_t id) { return model_->spelling(id); }, model_->vocab_size());
    for (const auto& [key, text] : model_->tokens().texts) table_.texts.try_emplace(key, text);
    if (!table_.bos) table_.bos = model_->bos_id();
    if (!table_.eos) table_.eos = model_->eos_id();
    if (table_.bos && special.flag("add_bos_token").value_or(false)) table_.prefix = {*table_.bos};
    if (table_.eos && special.flag("add_eos_token").value_or(false)) table_.suffix = {*table_.eos};
    std::vector<AddedToken> added;
    size_ = model_->vocab_size();
    for (const AddedToken& token : table_.added) {
      if (token.id < model_->vocab_size()) continue;
      size_ = std::max<int64_t>(size_, token.id + 1);
      texts_.emplace(token.id, token.content);
      added.push_back(token);
    }
    added_ = AddedTokenMatcher(std::move(added));
  }

  std::vector<int32_t> encode(std::string_view text) const override {
    if (added_.empty()) return model_->encode(text);
    std::vector<int32_t> ids;
    added_.run(
        text,
        [&](std::string_view part) {
          const auto more = model_->encode(part);
          ids.insert(ids.end(), more.begin(), more.end());
        },
        [&](int32_t id) { ids.push_back(id); });
    return ids;
  }
  size_t cut(std::string_view text, size_t at) const override {
    return added_.empty() ? model_->cut(text, at) : text.size();
  }
  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (size_t at = 0; at < ids.size();) {
      size_t end = at;
      while (end < ids.size() && !texts_.contains(ids[end])) ++end;
      // Ids that belong neither to a piece of tokenizer.model nor to an added token are skipped, because they have no
      // text.
      std::vector<int32_t> pieces;
      for (const int32_t id : ids.subspan(at, end - at)) {
        check_token_id(id, size_);
        if (id < model_->vocab_size()) pieces.push_back(id);
      }
      text += model_->decode(pieces);
      if (end < ids.size()) text += texts_.at(ids[end++]);
      at = end;
    }
    return text;
  }
  std::string piece(int32_t id) const override {
    check_token_id(id, size_);
    const auto added = texts_.find(id);
    if (added != texts_.end()) return added->second;
    return id < model_->vocab_size() ? model_->piece(id) : "";
  }
  int64_t vocab_size() const override { return size_; }
  uint64_t fingerprint() const override {
    if (texts_.empty()) return model_->fingerprint();
    std::string text = fmt::format("{}", model_->fingerprint());
    for (const auto& [id, content] : texts_) text += fmt::format("\n{} {}", id, content);
    return checksum(text);
  }
  std::string kind() const override { return model_->kind(); }
  void save(const fs::path& directory) const override {
    model_->save(directory);
    for (const auto& [name, content] : files_) write_file_atomic(directory / name, content);
  }

 private:
  std::unique_ptr<SentencePieceModel> model_;
  std::map<std::string, std::string> files_;
  std::map<int32_t, std::string> texts_;  // texts of the added tokens
  AddedTokenMatcher added_ = AddedTokenMatcher({});
  int64_t size_ = 0;
};

// Loads a folder that contains tokenizer.json and tokenizer.model. tokenizer.json is used, as in transformers, because
// only this file contains the added tokens. If one of the files cannot be read, the remaining file is used.
std::unique_ptr<Tokenizer> load_json_beside_model(const fs::path& folder) {
  const std::string json_name = (folder / "tokenizer.json").string(),
                    model_name = (folder / "tokenizer.model").string();
  std::string serialized = read_file(model_name);
  std::unique_ptr<SentencePieceModel> model;
  try {
    model = load_sentencepiece(serialized, model_name);
  } catch (const Error& error) {
    auto json = from_json(TokenizerJson(json_name));
    warn_once(folder, fmt::format("{} is used because {} in the same folder cannot be read", json_name, model_name));
    return json;
  }
  // If tokenizer.json is the file that save() writes next to tokenizer.model, tokenizer.model is used, because only
  // tokenizer.model preserves the character U+2581 in a text.
  if (const std::string own = model->tokenizer_json(); !own.empty() && own == read_file(json_name)) return model;
  std::unique_ptr<Tokenizer> json;
  std::vector<std::string> texts;
  try {
    TokenizerJson file{fs::path(json_name)};
    const nlohmann::json added =
        file.json.is_object() ? file.json.value("added_tokens", nlohmann::json()) : nlohmann::json();
    json = from_json(file);  // throws if `added` is invalid, so probe_texts() can rely on its form
    texts = probe_texts(added, *model);
  } catch (const Error& error) {
    warn_once(folder, fmt::format("{} is used because tokenizer.json in the same folder is not supported: {}",
                                  model_name, std::string(error.what())));
    return model;
  }
  const bool agree = std::all_of(texts.begin(), texts.end(),
                                 [&](const std::string& text) { return json->encode(text) == model->encode(text); });
  if (agree) return std::make_unique<EquivalentTokenizer>(std::move(json), model->fingerprint(), std::move(serialized));
  warn_once(folder, fmt::format("{} and {} encode a probe text differently; the first file is used, as in transformers",
                                json_name, model_name));
  return json;
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& source) {
  if (source == "bytes") return make_bytes_tokenizer();
  const fs::path path = source;
  if (!fs::exists(path)) {
    fail("tokenizer", "{}: expected \"bytes\", a file or a folder, but the path does not exist{}", source,
         hub_download_hint(source));
  }
  if (fs::is_directory(path)) {
    if (is_bytes_config(path)) return make_bytes_tokenizer();
    const bool model = fs::exists(path / "tokenizer.model"), json = fs::exists(path / "tokenizer.json");
    if (model && json) return load_json_beside_model(path);
    if (json) return from_json(TokenizerJson(path / "tokenizer.json"));
    if (model) {
      const std::string file = (path / "tokenizer.model").string();
      return std::make_unique<SentencePieceFolder>(load_sentencepiece(read_file(file), file), SpecialTokens(path));
    }
    if (fs::exists(path / "vocab.json") && fs::exists(path / "merges.txt")) {
      return make_bpe_tokenizer(read_vocab_and_merges(path / "vocab.json", path / "merges.txt"));
    }
    if (fs::exists(path / "vocab.txt")) return load_words_tokenizer(path / "vocab.txt");
    for (const char* name : {"vocab.bin", "vocab.pkl"}) {
      if (!fs::exists(path / name)) continue;
      fail("tokenizer",
           "{}: expected vocab.txt in the same folder, found only a pickle, which may run arbitrary code: "
           "docs/guides/models.md shows a command that lists its words",
           (path / name).string());
    }
    fail(
        "tokenizer",
        "{}: expected tokenizer.model, tokenizer.json, or vocab.json and merges.txt, or vocab.txt in this folder: copy "
        "these files from the folder of the original model, or save them with "
        "AutoTokenizer.from_pretrained(ORIGINAL).save_pretrained(FOLDER)",
        source);
  }
  if (path.extension() == ".json") return from_json(TokenizerJson(path));
  if (path.extension() == ".model") return load_sentencepiece(read_file(path), source);
  if (path.extension() == ".txt") return load_words_tokenizer(path);
  fail("tokenizer", "{}: expected a .model file, a tokenizer.json, a vocab.txt or a folder", source);
}

}  // namespace lazy
