// tokenizer.json of tokenizers that come from SentencePiece (Llama 2, Mistral): BPE over characters with byte fallback
// and a symbol for the space. Folders that transformers saves often have no tokenizer.model beside it.
#include <fmt/format.h>

#include <unordered_map>

#include "core/checksum.h"
#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "data/tokenizers/sentencepiece_bpe.h"
#include "data/tokenizers/tokenizer_json.h"
#include "data/tokenizers/vocabulary.h"

namespace lazy {
namespace fs = std::filesystem;
namespace {

constexpr const char* kJsonSpaceSymbol = "\xE2\x96\x81";

// Which stretches of text between added tokens get a space prefix.
enum class Prefix { never, first, every };

struct Pieces {
  std::vector<SentencePiece> pieces;  // by id
  std::vector<SentencePieceMerge> merges;
  std::vector<int32_t> byte_ids;
  std::vector<int> byte_of;  // by id: its byte, or -1
};

struct Spaces {
  bool symbol = false;  // spaces are replaced by the symbol
  Prefix prefix = Prefix::never;
  bool even_before_space = false;  // Prepend always adds the prefix, Metaspace only where the text has no leading space
};

void read_normalizer(const JsonField& node, Spaces& spaces) {
  if (!node.present()) return;
  const std::string type = node.find("type").string();
  if (type == "Sequence") {
    const JsonField list = node.find("normalizers");
    for (size_t i = 0; i < list.size(); ++i) read_normalizer(list.at(i), spaces);
  } else if (type == "Prepend") {
    if (node.find("prepend").string() != kJsonSpaceSymbol) node.find("prepend").wrong("\"\u2581\"");
    spaces.prefix = Prefix::every;
    spaces.even_before_space = true;
  } else if (type == "Replace") {
    const JsonField pattern = node.find("pattern");
    if (!pattern.present() || pattern.find("String").string() != " ") pattern.wrong("{\"String\": \" \"}");
    if (node.find("content").string() != kJsonSpaceSymbol) node.find("content").wrong("\"\u2581\"");
    spaces.symbol = true;
  } else {
    node.find("type").wrong("Prepend, Replace or Sequence (others are not supported with byte_fallback)");
  }
}

void read_pre_tokenizer(const JsonField& node, Spaces& spaces) {
  if (!node.present()) return;
  if (node.find("type").string() != "Metaspace")
    node.find("type").wrong("\"Metaspace\" (others are not supported with byte_fallback)");
  if (node.find("replacement").string() != kJsonSpaceSymbol) node.find("replacement").wrong("\"\u2581\"");
  spaces.symbol = true;
  std::string scheme = node.find("add_prefix_space").boolean(true) ? "always" : "never";
  if (const JsonField given = node.find("prepend_scheme"); given.present()) scheme = given.string();
  if (scheme != "always" && scheme != "first" && scheme != "never")
    node.find("prepend_scheme").wrong("always, first or never");
  if (spaces.prefix == Prefix::never && scheme != "never")
    spaces.prefix = scheme == "first" ? Prefix::first : Prefix::every;
}

Pieces read_pieces(const JsonField& model, BpeDefinition& definition) {
  const JsonField vocab = model.find("vocab");
  if (!vocab.present() || !vocab.json().is_object() || vocab.json().empty()) vocab.wrong("an object of tokens and ids");
  if (model.find("ignore_merges").boolean(false))
    model.find("ignore_merges").wrong("false (true is not supported with byte_fallback)");
  std::unordered_map<std::string, int32_t> ids;
  Pieces out;
  for (const auto& [token, value] : vocab.json().items()) {
    const JsonField entry("tokenizer", value, vocab.file(), vocab.name() + ": \"" + token + "\"");
    if (!value.is_number_integer() || value < 0 || value >= (1 << 24) || token.empty())
      entry.wrong("a text and an id from 0 to 2^24 - 1");
    const auto id = value.get<size_t>();
    if (id >= out.pieces.size()) out.pieces.resize(id + 1, {"", 0, false});
    if (!out.pieces[id].text.empty()) entry.wrong("an id of its own");
    out.pieces[id] = {token, 0, true};
    ids.emplace(token, static_cast<int32_t>(id));
  }
  out.byte_of.assign(out.pieces.size(), -1);
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = ids.find(fmt::format("<0x{:02X}>", byte));
    if (found == ids.end()) vocab.wrong(fmt::format("a token <0x{:02X}>, as for every byte (byte_fallback)", byte));
    out.byte_ids.push_back(found->second);
    out.byte_of[found->second] = byte;
    out.pieces[found->second].normal = false;
  }
  const JsonField merges = model.find("merges");
  for (size_t i = 0; i < merges.size(); ++i) {
    const JsonField entry = merges.at(i);
    const auto [left, right] = read_merge(entry);
    const auto id = [&](const std::string& token) {
      const auto found = ids.find(token);
      if (found == ids.end()) entry.wrong("tokens of the vocabulary with their sum");
      return found->second;
    };
    out.merges.push_back({id(left), id(right), id(left + right), static_cast<uint32_t>(i)});
  }
  for (const SentencePiece& piece : out.pieces) definition.tokens.push_back(piece.text);
  return out;
}

class SentencePieceJson final : public Tokenizer {
 public:
  SentencePieceJson(BpeDefinition definition, Pieces pieces, const Spaces& spaces, const std::string& name)
      : d_(std::move(definition)),
        p_(std::move(pieces)),
        spaces_(spaces),
        added_(d_.added),
        special_(d_.tokens.size()) {
    p_.byte_of.resize(d_.tokens.size(), -1);
    for (const AddedToken& token : d_.added) {
      special_[token.id] = token.special;
      if (static_cast<size_t>(token.id) < p_.pieces.size()) p_.pieces[token.id].normal = false;
    }
    bpe_ = SentencePieceBpe::make(p_.pieces, p_.merges, p_.byte_ids);
    if (!bpe_)
      fail("tokenizer", "{}: model.vocab: expected a token for every character of the others, found one without", name);
  }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    const std::string valid = to_valid_utf8(text);
    added_.run(
        valid, [&](std::string_view part) { encode_part(part, part.data() == valid.data(), ids); },
        [&](int32_t id) { ids.push_back(id); });
    return ids;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) text += piece(id);
    if (spaces_.prefix != Prefix::never && text.starts_with(' ')) text.erase(0, 1);
    return text;
  }
  std::string piece(int32_t id) const override {
    check_token_id(id, vocab_size());
    if (special_[id]) return "";
    if (p_.byte_of[id] >= 0) return std::string(1, static_cast<char>(p_.byte_of[id]));
    return replaced(d_.tokens[id], kJsonSpaceSymbol, " ");
  }
  int64_t vocab_size() const override { return static_cast<int64_t>(d_.tokens.size()); }
  std::optional<int32_t> bos_id() const override { return d_.bos; }
  std::optional<int32_t> eos_id() const override { return d_.eos; }
  std::string kind() const override { return "sentencepiece"; }
  bool finds_special_tokens() const override { return true; }
  uint64_t fingerprint() const override {
    std::string text =
        fmt::format("sentencepiece json {} {}", static_cast<int>(spaces_.prefix), spaces_.even_before_space);
    for (const std::string& token : d_.tokens) text += fmt::format("\n{} {}", token.size(), token);
    for (const SentencePieceMerge& merge : p_.merges) text += fmt::format("\n{} {}", merge.left, merge.right);
    for (const AddedToken& token : d_.added) text += fmt::format("\n{} {}{}", token.id, token.lstrip, token.rstrip);
    return checksum(text);
  }
  void save(const fs::path& directory) const override {
    fs::create_directories(directory);
    for (const auto& [name, content] : d_.files) write_file_atomic(directory / name, content);
  }

 private:
  static std::string replaced(std::string text, std::string_view from, std::string_view to) {
    for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
      text.replace(at, from.size(), to);
    return text;
  }

  void encode_part(std::string_view part, bool first, std::vector<int32_t>& ids) const {
    const std::string text = replaced(std::string(part), kJsonSpaceSymbol, " ");
    const bool wanted = spaces_.prefix == Prefix::every || (spaces_.prefix == Prefix::first && first);
    bpe_->encode(text, wanted && (spaces_.even_before_space || !text.starts_with(' ')), ids);
  }

  BpeDefinition d_;
  Pieces p_;
  Spaces spaces_;
  AddedTokenMatcher added_;
  std::vector<bool> special_;
  std::unique_ptr<SentencePieceBpe> bpe_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_json(TokenizerJson file) {
  BpeDefinition definition;
  const JsonField root = file.root(), model = root.find("model");
  if (const JsonField type = model.find("type"); type.present() && type.string() != "BPE") type.wrong("\"BPE\"");
  Spaces spaces;
  read_normalizer(root.find("normalizer"), spaces);
  read_pre_tokenizer(root.find("pre_tokenizer"), spaces);
  if (!spaces.symbol)
    root.find("pre_tokenizer").wrong("Metaspace, or a normalizer that replaces spaces (byte_fallback)");
  Pieces pieces = read_pieces(model, definition);
  read_added_tokens(root.find("added_tokens"), definition);
  for (size_t i = 0; i < definition.added.size(); ++i) {
    if (definition.added[i].normalized)
      root.find("added_tokens").at(i).find("normalized").wrong("false (byte_fallback)");
  }
  definition.files["tokenizer.json"] = std::move(file.text);
  read_special_tokens(file.path.parent_path(), "PreTrainedTokenizerFast", definition);
  return std::make_unique<SentencePieceJson>(std::move(definition), std::move(pieces), spaces, file.path.string());
}

}  // namespace lazy
