#include "data/tokenizers/bytes.h"

#include "core/file.h"
#include "data/tokenizers/check.h"
#include "data/tokenizers/transformers_files.h"

namespace lazy {
namespace {

constexpr int32_t kBos = 256, kEos = 257;
constexpr int64_t kVocabulary = 258;

class BytesTokenizer final : public Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids(text.size());
    for (size_t i = 0; i < text.size(); ++i) ids[i] = static_cast<unsigned char>(text[i]);
    return ids;
  }
  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    text.reserve(ids.size());
    for (const int32_t id : ids) text += piece(id);
    return text;
  }
  std::string piece(int32_t id) const override {
    check_id(id, kVocabulary);
    return id < 256 ? std::string(1, static_cast<char>(id)) : std::string();
  }
  int64_t vocab_size() const override { return kVocabulary; }
  std::optional<int32_t> bos_id() const override { return kBos; }
  std::optional<int32_t> eos_id() const override { return kEos; }
  uint64_t fingerprint() const override { return checksum("lazy bytes tokenizer 258"); }
  std::string kind() const override { return "bytes"; }
  void save(const std::filesystem::path& directory) const override {
    std::filesystem::create_directories(directory);
    write_bytes_config(directory);
  }
};

}  // namespace

std::unique_ptr<Tokenizer> make_bytes_tokenizer() { return std::make_unique<BytesTokenizer>(); }

}  // namespace lazy
