#include "data/tokenizers/simple_tokenizers.h"

#include <algorithm>
#include <unordered_map>

#include "core/checksum.h"
#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "data/tokenizers/transformers_files.h"
#include "data/tokenizers/vocabulary.h"

namespace lazy {

namespace {

constexpr int32_t kBos = 256, kEos = 257;
constexpr int64_t kVocabulary = 258;

class BytesTokenizer final : public Tokenizer {
 public:
  BytesTokenizer() {
    table_.bos = kBos;
    table_.eos = kEos;
    table_.prefix = {kBos};
    table_.special_ids = {kBos, kEos};
  }
  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids(text.size());
    for (size_t i = 0; i < text.size(); ++i) ids[i] = static_cast<unsigned char>(text[i]);
    return ids;
  }
  size_t cut(std::string_view text, size_t at) const override { return std::min(at, text.size()); }
  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    text.reserve(ids.size());
    for (const int32_t id : ids) text += piece(id);
    return text;
  }
  std::string piece(int32_t id) const override {
    check_token_id(id, kVocabulary);
    return id < 256 ? std::string(1, static_cast<char>(id)) : std::string();
  }
  int64_t vocab_size() const override { return kVocabulary; }
  uint64_t fingerprint() const override { return checksum("lazy bytes tokenizer 258"); }
  std::string kind() const override { return "bytes"; }
  void save(const std::filesystem::path& directory) const override {
    std::filesystem::create_directories(directory);
    write_bytes_config(directory);
  }
};

}  // namespace

std::unique_ptr<Tokenizer> make_bytes_tokenizer() { return std::make_unique<BytesTokenizer>(); }

namespace {

constexpr std::string_view kSpaces = " \t\r\v\f";

class WordsTokenizer final : public Tokenizer {
 public:
  WordsTokenizer(std::vector<std::string> words, const std::string& file) : words_(std::move(words)) {
    for (size_t i = 0; i < words_.size(); ++i) {
      const auto [place, fresh] = ids_.emplace(words_[i], static_cast<int32_t>(i));
      if (!fresh)
        fail("tokenizer", "{}: line {}: '{}' already occurs on line {}", file, i + 1, words_[i], place->second + 1);
    }
    const auto find = [&](std::string_view word) {
      return ids_.count(std::string(word)) ? ids_.at(std::string(word)) : -1;
    };
    eos_ = find("<eos>");
    unknown_ = find("<unk>") >= 0 ? find("<unk>") : find("<UNK>");
    if (eos_ >= 0) table_.eos = eos_;
    if (eos_ < 0 || unknown_ < 0)
      fail("tokenizer", "{}: expected <eos> and <unk> among the words, found {}", file,
           eos_ < 0 ? "no <eos>" : "no <unk>");
  }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    size_t at = 0;
    while (at < text.size()) {
      if (text[at] == '\n') {
        ids.push_back(eos_);
        ++at;
      } else if (kSpaces.find(text[at]) != std::string_view::npos) {
        ++at;
      } else {
        const size_t end = std::min(text.find_first_of(" \t\r\v\f\n", at), text.size());
        const auto found = ids_.find(std::string(text.substr(at, end - at)));
        ids.push_back(found == ids_.end() ? unknown_ : found->second);
        at = end;
      }
    }
    return ids;
  }
  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) text += piece(id);
    return text;
  }
  std::string piece(int32_t id) const override {
    check_token_id(id, vocab_size());
    return id == eos_ ? "\n" : words_[static_cast<size_t>(id)] + " ";
  }
  int64_t vocab_size() const override { return static_cast<int64_t>(words_.size()); }
  uint64_t fingerprint() const override { return checksum("lazy words tokenizer\n" + list()); }
  std::string kind() const override { return "words"; }
  void save(const std::filesystem::path& directory) const override {
    std::filesystem::create_directories(directory);
    write_file_atomic(directory / "vocab.txt", list());
  }

 private:
  std::string list() const {
    std::string out;
    for (const std::string& word : words_) out += word + "\n";
    return out;
  }

  std::vector<std::string> words_;
  std::unordered_map<std::string, int32_t> ids_;
  int32_t eos_ = -1, unknown_ = -1;
};

}  // namespace

std::unique_ptr<Tokenizer> load_words_tokenizer(const std::filesystem::path& path) {
  std::vector<std::string> words;
  const std::string text = read_file(path);
  if (text.size() > size_t{1} << 30)
    fail("tokenizer", "{}: expected a list of at most 2^30 bytes, found {}", path.string(), text.size());
  std::vector<std::string> lines = split(text, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();  // remove the empty text after the last line end
  for (size_t n = 0; n < lines.size(); ++n) {
    const std::string_view line = strip(lines[n]);
    if (line.empty()) fail("tokenizer", "{}: line {}: expected a word, found none", path.string(), n + 1);
    words.emplace_back(line.substr(0, line.find_first_of(kSpaces)));
  }
  return std::make_unique<WordsTokenizer>(std::move(words), path.string());
}

}  // namespace lazy
