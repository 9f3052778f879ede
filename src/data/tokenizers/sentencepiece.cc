#include "data/tokenizers/sentencepiece.h"

#include <fmt/format.h>
#include <sentencepiece_model.pb.h>
#include <sentencepiece_processor.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <unordered_set>

#include "core/checksum.h"
#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "data/tokenizers/sentencepiece_bpe.h"
#include "data/tokenizers/transformers_files.h"
#include "data/tokenizers/unicode.h"
#include "data/tokenizers/vocabulary.h"

namespace lazy {
namespace fs = std::filesystem;
namespace spm = ::sentencepiece;

namespace {

constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";  // U+2581, which represents a space in pieces
constexpr size_t kChunk = 1 << 20;

// Replaces the space symbol by a space.
std::string with_spaces(std::string_view symbols) {
  std::string text;
  for (size_t i = 0; i < symbols.size();) {
    const bool space = symbols.compare(i, kSpaceSymbol.size(), kSpaceSymbol) == 0;
    text += space ? ' ' : symbols[i];
    i += space ? kSpaceSymbol.size() : 1;
  }
  return text;
}

bool is_byte_name(const std::string& piece) {
  return piece.size() == 6 && piece.starts_with("<0x") && piece[5] == '>' &&
         std::isxdigit(static_cast<unsigned char>(piece[3])) && std::isxdigit(static_cast<unsigned char>(piece[4]));
}

class SentencePieceTokenizer final : public SentencePieceModel {
 public:
  SentencePieceTokenizer(std::string serialized, const std::string& name) : serialized_(std::move(serialized)) {
    load(first_, name);
    load(rest_, name);
    rest_.mutable_normalizer_spec()->set_add_dummy_prefix(false);
    size_ = first_.GetPieceSize();
    if (size_ <= 0) fail("tokenizer", "{}: the SentencePiece model has no pieces", name);
    const auto& normalizer = first_.model_proto().normalizer_spec();
    dummy_prefix_ = normalizer.add_dummy_prefix();
    identity_ = normalizer.precompiled_charsmap().empty() && !normalizer.remove_extra_whitespaces() &&
                normalizer.escape_whitespaces();
    for (int id = 0; id < size_; ++id) {
      if (first_.IsByte(id) && !is_byte_name(first_.IdToPiece(id))) {
        fail("tokenizer", "{}: piece {} represents a byte: expected a name like <0x0A>, found \"{}\"", name, id,
             first_.IdToPiece(id));
      }
    }
    fill_table();
    byte_ids_ = byte_pieces();
    quick_ = make_quick();
    if (!quick_) index_neighbours();
  }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    ids.reserve(text.size() / 3);
    std::string valid;
    if (identity_) {
      valid = to_valid_utf8(text);  // the SentencePiece library repairs invalid UTF-8 in the same way
      text = valid;
    }
    bool first = true;
    while (!text.empty()) {
      const size_t cut = identity_ && !quick_ ? safe_cut(text) : text.size();
      encode_lossless(text.substr(0, cut), first, ids);
      text.remove_prefix(cut);
      first = false;
    }
    return ids;
  }

  size_t cut(std::string_view text, size_t at) const override {
    return identity_ && quick_ && !dummy_prefix_ ? quick_->cut(text, at) : text.size();
  }

  std::string decode(std::span<const int32_t> ids) const override {
    for (const int32_t id : ids) check_token_id(id, size_);
    if (std::any_of(ids.begin(), ids.end(), [&](int32_t id) { return first_.IsControl(id); })) {
      std::string text;  // the SentencePiece library omits control pieces, so all pieces are concatenated here
      for (const int32_t id : ids) text += piece(id);
      if (dummy_prefix_ && text.starts_with(' ')) text.erase(0, 1);
      return text;
    }
    std::string text;
    const auto status = first_.Decode(std::vector<int>(ids.begin(), ids.end()), &text);
    if (!status.ok()) fail_run("tokenizer", "SentencePiece could not decode: {}", status.message());
    return text;
  }

  std::string piece(int32_t id) const override {
    check_token_id(id, size_);
    const std::string& symbol = first_.IdToPiece(id);
    if (first_.IsControl(id)) return symbol;
    if (first_.IsByte(id)) return std::string(1, static_cast<char>(std::stoi(symbol.substr(3, 2), nullptr, 16)));
    if (first_.IsUnknown(id)) return first_.model_proto().trainer_spec().unk_surface();
    return with_spaces(symbol);
  }

  int64_t vocab_size() const override { return size_; }
  std::string kind() const override { return "sentencepiece"; }

  // The hash covers everything in the file that determines the ids (pieces, scores, types, normalizer), but not the
  // settings of the trainer.
  uint64_t fingerprint() const override {
    std::string text = "sentencepiece";
    const auto& model = first_.model_proto();
    for (const auto& p : model.pieces()) {
      text += fmt::format("\n{} {} {}", p.piece(), std::bit_cast<uint32_t>(p.score()), static_cast<int>(p.type()));
    }
    const auto& normalizer = model.normalizer_spec();
    text +=
        fmt::format("\n{} {} {} {}", static_cast<int>(model.trainer_spec().model_type()), normalizer.add_dummy_prefix(),
                    normalizer.remove_extra_whitespaces(), checksum(normalizer.precompiled_charsmap()));
    return checksum(text);
  }

  void save(const fs::path& directory) const override {
    fs::create_directories(directory);
    write_file_atomic(directory / "tokenizer.model", serialized_);
    write_sentencepiece_config(directory, config());
    if (quick_) write_file_atomic(directory / "tokenizer.json", tokenizer_json());
  }

  std::optional<int32_t> find_piece(const std::string& spelling) const override {
    const int id = first_.PieceToId(spelling);
    return id >= 0 && id < size_ && first_.IdToPiece(id) == spelling ? std::optional<int32_t>(id) : std::nullopt;
  }
  std::string spelling(int32_t id) const override { return first_.IdToPiece(id); }
  std::string tokenizer_json() const override { return quick_ ? sentencepiece_json(config(), pieces()) : ""; }

 private:
  SentencePieceConfig config() const {
    const auto name = [&](int id) { return id < 0 ? std::string() : first_.IdToPiece(id); };
    return {.bos_token = name(first_.bos_id()),
            .eos_token = name(first_.eos_id()),
            .unk_token = name(first_.unk_id()),
            .add_prefix_space = dummy_prefix_,
            .has_json = quick_ != nullptr};
  }

  void load(spm::SentencePieceProcessor& processor, const std::string& name) {
    const auto status = processor.LoadFromSerializedProto(serialized_);
    if (!status.ok()) {
      fail("tokenizer", "{}: not a valid SentencePiece model ({} bytes)", name, serialized_.size());
    }
  }

  // Control pieces and <unk> are special tokens. BOS is added before a text (as in LlamaTokenizer).
  void fill_table() {
    for (int id = 0; id < size_; ++id) {
      if (first_.IsControl(id) || first_.IsUnknown(id)) {
        table_.added.push_back({.id = id, .content = first_.IdToPiece(id), .special = true});
      }
    }
    for (const auto& [key, id] : {std::pair("bos_token", first_.bos_id()),
                                  {"eos_token", first_.eos_id()},
                                  {"unk_token", first_.unk_id()},
                                  {"pad_token", first_.pad_id()}}) {
      if (id >= 0 && id < size_) table_.texts[key] = first_.IdToPiece(id);
    }
    if (first_.bos_id() >= 0) table_.prefix = {*(table_.bos = first_.bos_id())};
    if (first_.eos_id() >= 0) table_.eos = first_.eos_id();
    table_.index();
  }

  // Returns the ids of <0x00> .. <0xFF>, or an empty list if the model has no byte fallback.
  std::vector<int32_t> byte_pieces() const {
    std::vector<int32_t> ids;
    for (int b = 0; b < 256; ++b) {
      const int id = first_.PieceToId(fmt::format("<0x{:02X}>", b));
      if (id < 0 || !first_.IsByte(id)) return {};
      ids.push_back(id);
    }
    return ids;
  }

  // Returns a fast encoder, or null for models that SentencePieceBpe does not support.
  std::unique_ptr<SentencePieceBpe> make_quick() const {
    const auto& model = first_.model_proto();
    if (!identity_ || byte_ids_.empty() || model.trainer_spec().model_type() != spm::TrainerSpec::BPE ||
        model.trainer_spec().treat_whitespace_as_suffix()) {
      return nullptr;
    }
    using Type = spm::ModelProto::SentencePiece;
    for (const auto& p : model.pieces()) {
      if (p.type() == Type::USER_DEFINED || p.type() == Type::UNUSED) return nullptr;
    }
    return SentencePieceBpe::make(pieces(), byte_ids_);
  }

  std::vector<SentencePiece> pieces() const {
    std::vector<SentencePiece> pieces;
    for (const auto& p : first_.model_proto().pieces()) {
      pieces.push_back({p.piece(), p.score(), p.type() == spm::ModelProto::SentencePiece::NORMAL});
    }
    return pieces;
  }

  // Records which pairs of characters are adjacent in any piece. Between two characters that are never adjacent, a long
  // text can be cut without changing any id. Long texts are cut to limit the memory that encoding needs.
  void index_neighbours() {
    for (int id = 0; id < size_; ++id) {
      if (first_.IsControl(id) || first_.IsByte(id) || first_.IsUnknown(id)) continue;
      const std::string& symbol = first_.IdToPiece(id);
      uint32_t left = 0;
      for (size_t at = 0; at < symbol.size() && utf8_length(symbol, at) > 0; at += utf8_length(symbol, at)) {
        const uint32_t right = utf8_code_point(symbol, at);
        if (at > 0) neighbours_.insert(static_cast<uint64_t>(left) << 32 | right);
        left = right;
      }
    }
  }

  // Returns the position at which to cut a long text: the first one at or after kChunk that is not inside any possible
  // piece. Returns the size of the text if it is at most kChunk.
  size_t safe_cut(std::string_view text) const {
    if (text.size() <= kChunk) return text.size();
    size_t at = kChunk;
    while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) ++at;
    const auto shown = [](uint32_t c) { return c == ' ' ? 0x2581u : c; };
    uint32_t left = 0;
    for (bool begin = true; at < text.size(); begin = false) {
      const uint32_t right = shown(utf8_code_point(text, at));
      if (!begin && !neighbours_.contains(static_cast<uint64_t>(left) << 32 | right)) return at;
      left = right;
      at += utf8_length(text, at);
    }
    return text.size();
  }

  // Appends the ids of a text such that decoding restores the character U+2581. The SentencePiece library would decode
  // it as a space. For models with identity normalization, without dummy prefix and with byte fallback, U+2581 is
  // therefore encoded as bytes. All other models use the encoding of the library.
  void encode_lossless(std::string_view text, bool first, std::vector<int32_t>& ids) const {
    if (!identity_ || dummy_prefix_ || byte_ids_.empty()) return encode_part(text, first, ids);
    size_t mark;
    while ((mark = text.find(kSpaceSymbol)) != std::string_view::npos) {
      encode_part(text.substr(0, mark), first, ids);
      for (const char c : kSpaceSymbol) ids.push_back(byte_ids_[static_cast<unsigned char>(c)]);
      text.remove_prefix(mark + kSpaceSymbol.size());
    }
    encode_part(text, first, ids);
  }

  // Appends the ids of a part of a text. `first`: whether the part is the start of the text, to which the dummy prefix
  // (a space) is added.
  void encode_part(std::string_view text, bool first, std::vector<int32_t>& ids) const {
    if (text.empty()) return;
    if (quick_) {
      if (text.find(kSpaceSymbol) == std::string_view::npos) return quick_->encode(text, first && dummy_prefix_, ids);
      return quick_->encode(with_spaces(text), first && dummy_prefix_, ids);
    }
    std::vector<int> part;
    const auto status = (first ? first_ : rest_).Encode(text, &part);
    if (!status.ok()) fail_run("tokenizer", "SentencePiece could not encode: {}", status.message());
    ids.insert(ids.end(), part.begin(), part.end());
  }

  std::string serialized_;
  // first_ encodes the start of a text and adds the dummy prefix (a space). rest_ encodes later parts without a prefix.
  spm::SentencePieceProcessor first_, rest_;
  int64_t size_ = 0;
  bool dummy_prefix_ = false, identity_ = false;
  std::vector<int32_t> byte_ids_;
  std::unique_ptr<SentencePieceBpe> quick_;  // null: the SentencePiece library encodes texts
  std::unordered_set<uint64_t> neighbours_;
};

}  // namespace

std::unique_ptr<SentencePieceModel> load_sentencepiece(std::string serialized, const std::string& name) {
  return std::make_unique<SentencePieceTokenizer>(std::move(serialized), name);
}

}  // namespace lazy
