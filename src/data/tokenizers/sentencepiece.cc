#include "data/tokenizers/sentencepiece.h"

#include <sentencepiece_model.pb.h>
#include <sentencepiece_processor.h>

#include <bit>
#include <unordered_set>

#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "data/tokenizers/check.h"
#include "data/tokenizers/transformers_files.h"

namespace lazy {
namespace fs = std::filesystem;
namespace spm = ::sentencepiece;

namespace {

constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";  // U+2581, which stands for a space inside pieces
constexpr size_t kChunk = 1 << 20;

// Code point at `text[at]` (valid UTF-8), and the offset of the next one.
uint32_t code_point(std::string_view text, size_t at, size_t* next) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(text[i])); };
  const uint32_t lead = byte(at);
  const size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  uint32_t value = length == 1 ? lead : lead & (0x7Fu >> length);
  for (size_t i = 1; i < length && at + i < text.size(); ++i) value = value << 6 | (byte(at + i) & 0x3F);
  *next = std::min(at + length, text.size());
  return value;
}

class SentencePieceTokenizer final : public Tokenizer {
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
    byte_ids_ = byte_pieces();
    index_neighbours();
  }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    ids.reserve(text.size() / 3);
    std::string valid;
    if (text.size() > kChunk && identity_) {
      valid = to_valid_utf8(text);  // what the library itself would do, done first so that cuts fall between characters
      text = valid;
    }
    bool first = true;
    while (!text.empty()) {
      const size_t cut = identity_ ? safe_cut(text) : text.size();
      encode_lossless(first ? first_ : rest_, text.substr(0, cut), ids);
      text.remove_prefix(cut);
      first = false;
    }
    return ids;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    for (const int32_t id : ids) check_id(id, size_);
    std::string text;
    const auto status = first_.Decode(std::vector<int>(ids.begin(), ids.end()), &text);
    if (!status.ok()) fail_run("tokenizer", "SentencePiece could not decode: {}", status.message());
    return text;
  }

  std::string piece(int32_t id) const override {
    check_id(id, size_);
    if (first_.IsControl(id)) return "";
    const std::string& symbol = first_.IdToPiece(id);
    if (first_.IsByte(id)) return std::string(1, static_cast<char>(std::stoi(symbol.substr(3, 2), nullptr, 16)));
    if (first_.IsUnknown(id)) return first_.model_proto().trainer_spec().unk_surface();
    std::string text;
    for (size_t i = 0; i < symbol.size();) {
      const bool space = symbol.compare(i, kSpaceSymbol.size(), kSpaceSymbol) == 0;
      text += space ? ' ' : symbol[i];
      i += space ? kSpaceSymbol.size() : 1;
    }
    return text;
  }

  int64_t vocab_size() const override { return size_; }
  std::optional<int32_t> bos_id() const override { return special(first_.bos_id()); }
  std::optional<int32_t> eos_id() const override { return special(first_.eos_id()); }
  std::string kind() const override { return "sentencepiece"; }

  // Pieces, scores and kinds decide every id; the trainer's settings in the same file do not.
  uint64_t fingerprint() const override {
    std::string text = "sentencepiece";
    const auto& model = first_.model_proto();
    for (const auto& p : model.pieces()) {
      text += fmt::format("\n{} {} {}", p.piece(), std::bit_cast<uint32_t>(p.score()), static_cast<int>(p.type()));
    }
    const auto& normalizer = model.normalizer_spec();
    text += fmt::format("\n{} {} {} {}", static_cast<int>(model.trainer_spec().model_type()),
                        normalizer.add_dummy_prefix(), normalizer.remove_extra_whitespaces(),
                        checksum(normalizer.precompiled_charsmap()));
    return checksum(text);
  }

  void save(const fs::path& directory) const override {
    fs::create_directories(directory);
    write_file_atomic(directory / "tokenizer.model", serialized_);
    const auto name = [&](int id) { return id < 0 ? std::string() : first_.IdToPiece(id); };
    write_sentencepiece_config(directory, {.bos_token = name(first_.bos_id()),
                                           .eos_token = name(first_.eos_id()),
                                           .unk_token = name(first_.unk_id()),
                                           .add_prefix_space = dummy_prefix_});
  }

 private:
  void load(spm::SentencePieceProcessor& processor, const std::string& name) {
    const auto status = processor.LoadFromSerializedProto(serialized_);
    if (!status.ok()) {
      fail("tokenizer", "{}: not a SentencePiece model, or a damaged one ({} bytes)", name, serialized_.size());
    }
  }

  std::optional<int32_t> special(int id) const { return id < 0 ? std::nullopt : std::optional<int32_t>(id); }

  // Ids of <0x00> .. <0xFF>, or nothing when the model has no byte fallback.
  std::vector<int32_t> byte_pieces() const {
    std::vector<int32_t> ids;
    for (int b = 0; b < 256; ++b) {
      const int id = first_.PieceToId(fmt::format("<0x{:02X}>", b));
      if (id < 0 || !first_.IsByte(id)) return {};
      ids.push_back(id);
    }
    return ids;
  }

  // Remembers which characters stand side by side in any piece. Where two characters never do, no piece can cross,
  // and a long text may be cut without changing an id: memory stays bounded.
  void index_neighbours() {
    for (int id = 0; id < size_; ++id) {
      if (first_.IsControl(id) || first_.IsByte(id) || first_.IsUnknown(id)) continue;
      const std::string& symbol = first_.IdToPiece(id);
      size_t at = 0;
      uint32_t left = 0;
      for (bool begin = true; at < symbol.size(); begin = false) {
        const uint32_t right = code_point(symbol, at, &at);
        if (!begin) neighbours_.insert(static_cast<uint64_t>(left) << 32 | right);
        left = right;
      }
    }
  }

  // The whole text if it is short, otherwise a place at or after kChunk where no piece crosses.
  size_t safe_cut(std::string_view text) const {
    if (text.size() <= kChunk) return text.size();
    size_t at = kChunk;
    while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) ++at;
    const auto shown = [](uint32_t c) { return c == ' ' ? 0x2581u : c; };
    uint32_t left = 0;
    for (bool begin = true; at < text.size(); begin = false) {
      size_t next;
      const uint32_t right = shown(code_point(text, at, &next));
      if (!begin && !neighbours_.contains(static_cast<uint64_t>(left) << 32 | right)) return at;
      left = right;
      at = next;
    }
    return text.size();
  }

  // The library turns U+2581 itself into a space. In models meant to give every text back (identity normalization,
  // no dummy prefix, byte fallback) it is written as bytes instead.
  void encode_lossless(const spm::SentencePieceProcessor& processor, std::string_view text,
                       std::vector<int32_t>& ids) const {
    if (!identity_ || dummy_prefix_ || byte_ids_.empty()) return encode_plain(processor, text, ids);
    size_t mark;
    while ((mark = text.find(kSpaceSymbol)) != std::string_view::npos) {
      encode_plain(processor, text.substr(0, mark), ids);
      for (const char c : kSpaceSymbol) ids.push_back(byte_ids_[static_cast<unsigned char>(c)]);
      text.remove_prefix(mark + kSpaceSymbol.size());
    }
    encode_plain(processor, text, ids);
  }

  static void encode_plain(const spm::SentencePieceProcessor& processor, std::string_view text,
                           std::vector<int32_t>& ids) {
    if (text.empty()) return;
    std::vector<int> part;
    const auto status = processor.Encode(text, &part);
    if (!status.ok()) fail_run("tokenizer", "SentencePiece could not encode: {}", status.message());
    ids.insert(ids.end(), part.begin(), part.end());
  }

  std::string serialized_;
  spm::SentencePieceProcessor first_, rest_;  // rest_: the same without the dummy prefix, for later parts of a text
  int64_t size_ = 0;
  bool dummy_prefix_ = false, identity_ = false;
  std::vector<int32_t> byte_ids_;
  std::unordered_set<uint64_t> neighbours_;
};

}  // namespace

std::unique_ptr<Tokenizer> load_sentencepiece(std::string serialized, const std::string& name) {
  return std::make_unique<SentencePieceTokenizer>(std::move(serialized), name);
}

}  // namespace lazy
