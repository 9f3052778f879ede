// Reads tokenizer.json of tokenizers that originate from SentencePiece (Llama 2, Mistral): BPE over characters with
// byte fallback and a symbol for the space. Folders that transformers saves often do not contain tokenizer.model.
#include <fmt/format.h>

#include <unordered_map>
#include <unordered_set>

#include "core/checksum.h"
#include "core/file.h"
#include "core/text.h"
#include "data/tokenizers/sentencepiece_bpe.h"
#include "data/tokenizers/tokenizer_json.h"
#include "data/tokenizers/vocabulary.h"

namespace lazy {
namespace fs = std::filesystem;
namespace {

constexpr const char* kJsonSpaceSymbol = "\xE2\x96\x81";

// Added tokens divide a text into parts. This value tells which parts get a space as prefix: none, the first one or
// every one.
enum class Prefix { never, first, every };

struct Pieces {
  std::vector<SentencePiece> pieces;  // indexed by id
  std::vector<SentencePieceMerge> merges;
  std::vector<int32_t> byte_ids;
  std::vector<int> byte_of;  // indexed by id: the byte that the id represents, or -1
};

struct Spaces {
  bool symbol = false;  // whether spaces are replaced by the space symbol (U+2581)
  Prefix prefix = Prefix::never;
  // Whether the prefix is added even if the text begins with a space. True for the normalizer Prepend, false for
  // Metaspace.
  bool even_before_space = false;
};

void read_normalizer(const JsonField& node, Spaces& spaces) {
  if (!node.present()) return;
  const std::string type = node.find("type").string();
  if (type == "Sequence") {
    allow_keys(node, {"type", "normalizers"});
    const JsonField list = node.find("normalizers");
    for (size_t i = 0; i < list.size(); ++i) read_normalizer(list.at(i), spaces);
  } else if (type == "Prepend") {
    allow_keys(node, {"type", "prepend"});
    if (node.find("prepend").string() != kJsonSpaceSymbol || spaces.prefix != Prefix::never) not_native(node);
    spaces.prefix = Prefix::every;
    spaces.even_before_space = true;
  } else if (type == "Replace") {
    allow_keys(node, {"type", "pattern", "content"});
    const JsonField pattern = node.find("pattern");
    if (!pattern.present() || !pattern.find("String").present() || pattern.find("String").string() != " " ||
        node.find("content").string() != kJsonSpaceSymbol) {
      not_native(node);
    }
    spaces.symbol = true;
  } else {
    not_native(node.find("type"));
  }
}

// Reads the settings of the pre-tokenizer. Returns whether it splits the text into words at spaces.
bool read_pre_tokenizer(const JsonField& node, Spaces& spaces) {
  if (!node.present()) return false;
  const std::string type = node.find("type").string();
  // In the form used by Gemma, the normalizer has already replaced all spaces, so the text cannot be split at spaces.
  if (type == "Split" && spaces.symbol && node.find("pattern").present() &&
      node.find("pattern").find("String").present() && node.find("pattern").find("String").string() == " " &&
      !node.find("invert").boolean(false)) {
    return false;
  }
  if (type != "Metaspace" || spaces.prefix != Prefix::never) not_native(node);
  allow_keys(node, {"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"});
  if (node.find("replacement").string() != kJsonSpaceSymbol) not_native(node.find("replacement"));
  spaces.symbol = true;
  std::string scheme = node.find("add_prefix_space").boolean(true) ? "always" : "never";
  if (const JsonField given = node.find("prepend_scheme"); given.present()) scheme = given.string();
  if (scheme != "always" && scheme != "first" && scheme != "never") not_native(node.find("prepend_scheme"));
  if (scheme != "never") spaces.prefix = scheme == "first" ? Prefix::first : Prefix::every;
  return node.find("split").boolean(true);
}

// Checks that the decoder is supported. Returns whether it removes the first space of a text.
bool read_decoder(const JsonField& node, const Spaces& spaces) {
  if (!node.present()) return spaces.prefix != Prefix::never;
  if (node.find("type").string() != "Sequence") not_native(node);
  const JsonField list = node.find("decoders");
  const bool strips = list.size() == 4;
  if (list.size() != 3 && !strips) not_native(node);
  const nlohmann::json steps[] = {{{"type", "Replace"}, {"pattern", {{"String", kJsonSpaceSymbol}}}, {"content", " "}},
                                  {{"type", "ByteFallback"}},
                                  {{"type", "Fuse"}},
                                  {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}};
  for (size_t i = 0; i < list.size(); ++i) {
    if (list.at(i).json() != steps[i]) not_native(list.at(i));
  }
  return strips;
}

Pieces read_pieces(const JsonField& model, bool split_at_spaces) {
  if (const JsonField type = model.find("type"); type.present() && type.string() != "BPE") not_native(type);
  allow_keys(model, {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                     "byte_fallback", "vocab", "merges"});
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (const JsonField affix = model.find(key); affix.present() && !affix.string().empty()) not_native(affix);
  }
  if (const JsonField dropout = model.find("dropout"); dropout.present() && dropout.json() != 0.0) not_native(dropout);
  const JsonField vocab = model.find("vocab");
  if (!vocab.present() || !vocab.json().is_object() || vocab.json().empty())
    vocab.wrong("an object that maps tokens to ids");
  std::unordered_map<std::string, int32_t> ids;
  Pieces out;
  for (const auto& [token, value] : vocab.json().items()) {
    const JsonField entry("tokenizer", value, vocab.file(), vocab.name() + ": \"" + token + "\"");
    if (!value.is_number_integer() || value < 0 || value >= (1 << 24) || token.empty())
      entry.wrong("a nonempty token and an id from 0 to 2^24 - 1");
    const auto id = value.get<size_t>();
    if (id >= out.pieces.size()) out.pieces.resize(id + 1, {"", 0, false});
    if (!out.pieces[id].text.empty()) not_native(entry);
    out.pieces[id] = {token, 0, true};
    ids.emplace(token, static_cast<int32_t>(id));
  }
  out.byte_of.assign(out.pieces.size(), -1);
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = ids.find(fmt::format("<0x{:02X}>", byte));
    if (found == ids.end()) throw NotNative(fmt::format("{}: a vocabulary without <0x{:02X}>", vocab.place(), byte));
    out.byte_ids.push_back(found->second);
    out.byte_of[found->second] = byte;
    out.pieces[found->second].normal = false;
  }
  const JsonField merges = model.find("merges");
  std::unordered_set<uint64_t> pairs;
  for (size_t i = 0; i < merges.size(); ++i) {
    const JsonField entry = merges.at(i);
    const auto [left, right] = read_merge(entry);
    const auto id = [&](const std::string& token) {
      const auto found = ids.find(token);
      if (found == ids.end()) entry.wrong("tokens of the vocabulary whose concatenation is also in the vocabulary");
      return found->second;
    };
    const SentencePieceMerge merge{id(left), id(right), id(left + right), static_cast<uint32_t>(i)};
    if (!pairs.insert(static_cast<uint64_t>(merge.left) << 32 | static_cast<uint32_t>(merge.right)).second ||
        (split_at_spaces && (left + right).find(kJsonSpaceSymbol, 1) != std::string::npos)) {
      not_native(entry);
    }
    out.merges.push_back(merge);
  }
  return out;
}

struct Definition {
  Pieces pieces;
  Spaces spaces;
  bool strips = false;              // whether decoding removes the first space of a text
  std::vector<std::string> tokens;  // indexed by id, as spelled in the file
  TokenTable table;
  std::map<std::string, std::string> files;
};

class SentencePieceJson final : public Tokenizer {
 public:
  SentencePieceJson(Definition definition, const std::string& name)
      : d_(std::move(definition)), added_(d_.table.added) {
    d_.pieces.byte_of.resize(d_.tokens.size(), -1);
    for (const AddedToken& token : d_.table.added) {
      if (static_cast<size_t>(token.id) < d_.pieces.pieces.size()) d_.pieces.pieces[token.id].normal = false;
    }
    bpe_ = SentencePieceBpe::make(d_.pieces.pieces, d_.pieces.merges, d_.pieces.byte_ids);
    if (!bpe_)
      throw NotNative(fmt::format("{}: model.vocab: a piece with a character that is not itself a piece", name));
    table_ = std::move(d_.table);
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
    if (d_.strips && text.starts_with(' ')) text.erase(0, 1);
    return text;
  }
  std::string piece(int32_t id) const override {
    check_token_id(id, vocab_size());
    if (d_.pieces.byte_of[id] >= 0) return std::string(1, static_cast<char>(d_.pieces.byte_of[id]));
    return replaced(d_.tokens[id], kJsonSpaceSymbol, " ");
  }
  int64_t vocab_size() const override { return static_cast<int64_t>(d_.tokens.size()); }
  std::string kind() const override { return "sentencepiece"; }
  bool finds_special_tokens() const override { return true; }
  uint64_t fingerprint() const override {
    std::string text =
        fmt::format("sentencepiece json {} {}", static_cast<int>(d_.spaces.prefix), d_.spaces.even_before_space);
    for (const std::string& token : d_.tokens) text += fmt::format("\n{} {}", token.size(), token);
    for (const SentencePieceMerge& merge : d_.pieces.merges) text += fmt::format("\n{} {}", merge.left, merge.right);
    for (const AddedToken& token : table_.added) text += fmt::format("\n{} {}{}", token.id, token.lstrip, token.rstrip);
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
    const bool wanted = d_.spaces.prefix == Prefix::every || (d_.spaces.prefix == Prefix::first && first);
    bpe_->encode(text, wanted && (d_.spaces.even_before_space || !text.starts_with(' ')), ids);
  }

  Definition d_;
  AddedTokenMatcher added_;
  std::unique_ptr<SentencePieceBpe> bpe_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_json(const TokenizerJson& file, const SpecialTokens& special) {
  Definition definition;
  const JsonField root = file.root();
  allow_keys(root, {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                    "decoder", "model"});
  read_normalizer(root.find("normalizer"), definition.spaces);
  const bool split = read_pre_tokenizer(root.find("pre_tokenizer"), definition.spaces);
  if (!definition.spaces.symbol) not_native(root.find("pre_tokenizer"));
  definition.strips = read_decoder(root.find("decoder"), definition.spaces);
  definition.pieces = read_pieces(root.find("model"), split);
  std::unordered_map<std::string, int32_t> ids;
  for (const SentencePiece& piece : definition.pieces.pieces) {
    if (!piece.text.empty()) ids.emplace(piece.text, static_cast<int32_t>(definition.tokens.size()));
    definition.tokens.push_back(piece.text);
  }
  definition.table = special.resolve(
      read_added_tokens(root.find("added_tokens")),
      [&](const std::string& text) {
        const auto found = ids.find(text);
        return found == ids.end() ? std::nullopt : std::optional(found->second);
      },
      [&](int32_t id) { return definition.tokens[id]; }, static_cast<int64_t>(definition.tokens.size()));
  check_native(definition.table.added, file.path.string());
  for (const AddedToken& token : definition.table.added) {
    const auto known = ids.find(token.content);
    const bool used = static_cast<size_t>(token.id) < definition.pieces.pieces.size() &&
                      !definition.pieces.pieces[token.id].text.empty();
    if (token.normalized || (known != ids.end() && known->second != token.id) || (known == ids.end() && used)) {
      throw NotNative(fmt::format("{}: the added token \"{}\"", file.path.string(), token.content));
    }
    if (static_cast<size_t>(token.id) >= definition.tokens.size()) definition.tokens.resize(token.id + 1);
    definition.tokens[token.id] = token.content;
  }
  if (!read_post_processor(root.find("post_processor"), definition.table)) not_native(root.find("post_processor"));
  definition.files = files_to_save(file.text, special, definition.table);
  return std::make_unique<SentencePieceJson>(std::move(definition), file.path.string());
}

}  // namespace lazy
