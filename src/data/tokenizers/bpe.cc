#include "data/tokenizers/bpe.h"

#include <fmt/format.h>

#include <array>
#include <unordered_map>

#include "core/checksum.h"
#include "core/file.h"
#include "data/tokenizers/merges.h"
#include "data/tokenizers/unicode.h"
#include "data/tokenizers/vocabulary.h"

namespace lazy {
namespace fs = std::filesystem;

namespace {

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeDefinition definition)
      : d_(std::move(definition)),
        merges_(d_.merges.size()),
        raw_(matcher(d_.table.added, false)),
        normalized_(matcher(d_.table.added, true)) {
    uint32_t rank = 0;
    for (const auto& merge : d_.merges) merges_.add(merge.left, merge.right, merge.merged, rank++);
    byte_ids_.fill(-1);
    for (size_t id = 0; id < d_.reachable.size(); ++id) {
      const std::string& token = d_.tokens[id];
      if (token.empty() || !d_.reachable[id]) continue;
      if (token.size() == 1) byte_ids_[static_cast<unsigned char>(token[0])] = static_cast<int32_t>(id);
      if (d_.ignore_merges) whole_words_.emplace(token, static_cast<int32_t>(id));
    }
    table_ = std::move(d_.table);
  }

  std::vector<int32_t> encode(std::string_view text) const override {
    static thread_local WordCache cache;
    std::vector<int32_t> ids;
    ids.reserve(text.size() / 3);
    const auto take = [&](int32_t id) { ids.push_back(id); };
    const auto words = [&](std::string_view part) {
      d_.pre_tokenizer.run(
          part, [&](std::string_view word) { cache.encode(owner_, word, ids, [&] { merge_word(word, ids); }); });
    };
    const auto normalized = [&](std::string_view part) { normalized_.run(part, words, take); };
    raw_.run(
        text, [&](std::string_view part) { d_.nfc ? normalized(to_nfc(part)) : normalized(part); }, take);
    return ids;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      check_token_id(id, vocab_size());
      text += d_.tokens[id];
    }
    return text;
  }
  std::string piece(int32_t id) const override {
    check_token_id(id, vocab_size());
    return d_.tokens[id];
  }
  int64_t vocab_size() const override { return static_cast<int64_t>(d_.tokens.size()); }
  std::string kind() const override { return "bpe"; }
  bool finds_special_tokens() const override { return true; }

  uint64_t fingerprint() const override {
    std::string text = fmt::format("bpe {} {} {}", d_.ignore_merges, d_.nfc, d_.pre_tokenizer.description());
    for (const std::string& token : d_.tokens) text += fmt::format("\n{} {}", token.size(), token);
    for (const auto& merge : d_.merges) text += fmt::format("\n{} {}", merge.left, merge.right);
    for (const AddedToken& token : table_.added) {
      text += fmt::format("\n{} {}{}{}", token.id, token.lstrip, token.rstrip, token.normalized);
    }
    return checksum(text);
  }

  void save(const fs::path& directory) const override {
    fs::create_directories(directory);
    for (const auto& [name, content] : d_.files) write_file_atomic(directory / name, content);
  }

 private:
  // Returns a matcher for those added tokens that are matched in the normalized text (if `normalized` is true) or in
  // the unmodified text (if it is false).
  AddedTokenMatcher matcher(const std::vector<AddedToken>& all, bool normalized) const {
    std::vector<AddedToken> tokens;
    for (const AddedToken& token : all) {
      if (token.normalized == normalized) tokens.push_back(token);
    }
    return AddedTokenMatcher(std::move(tokens));
  }

  void merge_word(std::string_view word, std::vector<int32_t>& ids) const {
    if (d_.ignore_merges) {
      if (const auto found = whole_words_.find(word); found != whole_words_.end()) {
        ids.push_back(found->second);
        return;
      }
    }
    static thread_local std::vector<int32_t> symbols;
    symbols.clear();
    for (const char c : word) {
      // A byte without a token is skipped, as in `tokenizers` for models without unk_token.
      if (const int32_t id = byte_ids_[static_cast<unsigned char>(c)]; id >= 0) symbols.push_back(id);
    }
    merges_.merge(symbols);
    ids.insert(ids.end(), symbols.begin(), symbols.end());
  }

  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return checksum(text); }
  };
  BpeDefinition d_;
  MergeTable merges_;
  AddedTokenMatcher raw_, normalized_;
  std::array<int32_t, 256> byte_ids_{};
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> whole_words_;
  CacheOwner owner_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeDefinition definition) {
  return std::make_unique<BpeTokenizer>(std::move(definition));
}

}  // namespace lazy
