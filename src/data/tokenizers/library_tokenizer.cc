#include "data/tokenizers/library_tokenizer.h"

#include <algorithm>
#include <cctype>
#include <unordered_map>

#include "core/checksum.h"
#include "core/file.h"
#include "core/python_service.h"
#include "core/text.h"
#include "data/tokenizers/unicode.h"
#include "data/tokenizers/vocabulary.h"
#include "tokenizers_script.h"

namespace lazy {
namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

namespace {

constexpr int kRequestSeconds = 600;
constexpr size_t kBatchBytes = 4 << 20;  // bytes of text per request
constexpr size_t kContext = 8;           // number of preceding ids that a decoder may depend on
constexpr std::string_view kSpaceInPieces = "\xE2\x96\x81";

// How a single token is converted to text. byte_level and byte_fallback tokens are decoded here. `any`: the Python
// package decodes, because the text of a token may depend on adjacent tokens.
enum class Decoding { byte_level, byte_fallback, any };

Decoding decoding_of(const nlohmann::json& tokenizer) {
  const auto type = [](const nlohmann::json& node) {
    return node.is_object() && node.contains("type") ? node["type"] : nlohmann::json();
  };
  const auto found = tokenizer.find("decoder");
  if (found == tokenizer.end() || found->is_null()) {
    // Without a decoder, the package inserts spaces between tokens. In this case, tokens of a byte-level tokenizer are
    // decoded as bytes.
    const auto splits = tokenizer.find("pre_tokenizer");
    return splits != tokenizer.end() && splits->dump().find("\"ByteLevel\"") != std::string::npos ? Decoding::byte_level
                                                                                                  : Decoding::any;
  }
  if (type(*found) == "ByteLevel") return Decoding::byte_level;
  if (type(*found) != "Sequence" || !found->contains("decoders") || !(*found)["decoders"].is_array()) {
    return Decoding::any;
  }
  const nlohmann::json& steps = (*found)["decoders"];
  const nlohmann::json replace{{"type", "Replace"}, {"pattern", {{"String", kSpaceInPieces}}}, {"content", " "}};
  const bool known = (steps.size() == 3 || (steps.size() == 4 && type(steps[3]) == "Strip")) && steps[0] == replace &&
                     type(steps[1]) == "ByteFallback" && type(steps[2]) == "Fuse";
  return known ? Decoding::byte_fallback : Decoding::any;
}

class LibraryTokenizer final : public Tokenizer {
 public:
  LibraryTokenizer(const nlohmann::json& definition, TokenTable table, std::map<std::string, std::string> files,
                   const std::string& what)
      : files_(std::move(files)),
        decoding_(decoding_of(definition)),
        byte_fallback_(definition.contains("decoder") &&
                       definition["decoder"].dump().find("\"ByteFallback\"") != std::string::npos) {
    table_ = std::move(table);
    nlohmann::json function = definition;  // the parts that determine the ids, for the fingerprint
    for (const char* key : {"version", "truncation", "padding", "post_processor", "decoder"}) function.erase(key);
    fingerprint_ = checksum("tokenizers " + function.dump());
    OrderedJson ids = OrderedJson::object();
    for (const AddedToken& token : table_.added) ids[token.content] = token.id;
    python_ = std::make_unique<PythonService>(
        "tokenizer", what, kRunTokenizers,
        OrderedJson{{"tokenizer", definition.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)},
                    {"ids", ids}});
    const OrderedJson ready = python_->start();
    for (const OrderedJson& piece : ready.at("pieces"))
      pieces_.push_back(piece.is_null() ? "" : piece.get<std::string>());
    table_.prefix = ready.at("prefix").get<std::vector<int32_t>>();
    table_.suffix = ready.at("suffix").get<std::vector<int32_t>>();
  }

  std::vector<int32_t> encode(std::string_view text) const override {
    const std::string one(text);
    return std::move(encode_batch({&one, 1})[0]);
  }

  std::vector<std::vector<int32_t>> encode_batch(std::span<const std::string> texts) const override {
    std::vector<std::vector<int32_t>> out;
    while (out.size() < texts.size()) {
      OrderedJson batch = OrderedJson::array();
      size_t bytes = 0;
      for (size_t i = out.size(); i < texts.size() && (batch.empty() || bytes + texts[i].size() <= kBatchBytes); ++i) {
        bytes += texts[i].size();
        batch.push_back(to_valid_utf8(texts[i]));
      }
      for (const OrderedJson& ids : ask({{"encode", std::move(batch)}}, "ids"))
        out.push_back(ids.get<std::vector<int32_t>>());
    }
    return out;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    for (const int32_t id : ids) check_token_id(id, vocab_size());
    if (decoding_ == Decoding::byte_level) {
      std::string text;
      for (const int32_t id : ids) text += piece(id);
      return text;
    }
    return decode_all({std::vector<int32_t>(ids.begin(), ids.end())})[0];
  }

  std::string piece(int32_t id) const override {
    check_token_id(id, vocab_size());
    const std::string& token = pieces_[id];
    if (is_byte(token)) return std::string(1, static_cast<char>(std::stoi(token.substr(3, 2), nullptr, 16)));
    switch (decoding_) {
      case Decoding::byte_level:
        return printable_to_bytes(token).value_or(token);
      case Decoding::byte_fallback: {
        std::string text = token;
        for (size_t at = 0; (at = text.find(kSpaceInPieces, at)) != std::string::npos; ++at) {
          text.replace(at, kSpaceInPieces.size(), " ");
        }
        return text;
      }
      case Decoding::any:
        return decode_all({{id}})[0];
    }
    return "";
  }

  std::string next_piece(std::span<const int32_t> previous, int32_t id) const override {
    check_token_id(id, vocab_size());
    // For a byte token, returns the byte itself. The decoder would return U+FFFD while a character is incomplete.
    if (decoding_ != Decoding::any || is_byte(pieces_[id])) return piece(id);
    previous = previous.last(std::min(previous.size(), kContext));
    std::vector<int32_t> before(previous.begin(), previous.end()), after = before;
    after.push_back(id);
    const auto texts = decode_all({std::move(before), std::move(after)});
    return texts[1].starts_with(texts[0]) ? texts[1].substr(texts[0].size()) : piece(id);
  }

  int64_t vocab_size() const override { return static_cast<int64_t>(pieces_.size()); }
  uint64_t fingerprint() const override { return fingerprint_; }
  std::string kind() const override { return "tokenizers"; }
  bool finds_special_tokens() const override { return true; }
  void save(const fs::path& directory) const override {
    fs::create_directories(directory);
    for (const auto& [name, content] : files_) write_file_atomic(directory / name, content);
  }

 private:
  // Returns whether the token has the form "<0x41>" and the decoder converts it to a byte.
  bool is_byte(const std::string& token) const {
    return byte_fallback_ && token.size() == 6 && token.starts_with("<0x") && token[5] == '>' &&
           std::isxdigit(static_cast<unsigned char>(token[3])) && std::isxdigit(static_cast<unsigned char>(token[4]));
  }
  OrderedJson ask(const OrderedJson& question, const char* key) const {
    OrderedJson answer = python_->ask(question, kRequestSeconds);
    if (answer.contains("error")) fail_run("tokenizer", "`tokenizers`: {}", answer["error"].get<std::string>());
    return std::move(answer.at(key));
  }
  std::vector<std::string> decode_all(const std::vector<std::vector<int32_t>>& ids) const {
    return ask({{"decode", ids}}, "texts").get<std::vector<std::string>>();
  }

  std::map<std::string, std::string> files_;
  Decoding decoding_;
  bool byte_fallback_;
  uint64_t fingerprint_ = 0;
  std::vector<std::string> pieces_;
  std::unique_ptr<PythonService> python_;
};

// The ids and texts of the vocabulary of a model. The file stores either an object that maps texts to ids, or, for
// Unigram, a list of texts and scores.
struct Vocabulary {
  std::unordered_map<std::string, int32_t> ids;
  std::unordered_map<int32_t, std::string> texts;
  int64_t size = 0;

  explicit Vocabulary(const JsonField& vocab) {
    const auto add = [&](const std::string& text, int64_t id) {
      if (id < 0 || id >= (1 << 24)) vocab.wrong("ids from 0 to 2^24 - 1");
      ids.emplace(text, static_cast<int32_t>(id));
      texts.emplace(static_cast<int32_t>(id), text);
      size = std::max(size, id + 1);
    };
    if (!vocab.present()) vocab.wrong("a vocabulary");
    const nlohmann::json& json = vocab.json();
    if (json.is_object()) {
      for (const auto& [text, id] : json.items()) {
        if (!id.is_number_integer()) vocab.find(text).wrong("an id");
        add(text, id.get<int64_t>());
      }
    } else {
      for (size_t i = 0; i < vocab.size(); ++i) add(vocab.at(i).at(0).string(), static_cast<int64_t>(i));
    }
  }
};

}  // namespace

std::unique_ptr<Tokenizer> make_library_tokenizer(const TokenizerJson& file, const SpecialTokens& special,
                                                  const std::string& reason) {
  const JsonField root = file.root();
  std::vector<AddedToken> added = read_added_tokens(root.find("added_tokens"), /*native=*/false);
  const Vocabulary vocabulary(root.find("model").find("vocab"));
  TokenTable table = special.resolve(
      std::move(added),
      [&](const std::string& text) {
        const auto found = vocabulary.ids.find(text);
        return found == vocabulary.ids.end() ? std::nullopt : std::optional(found->second);
      },
      [&](int32_t id) {
        const auto found = vocabulary.texts.find(id);
        return found == vocabulary.texts.end() ? std::string() : found->second;
      },
      vocabulary.size);
  auto list = nlohmann::json::array();
  std::vector<AddedToken> sorted = table.added;
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  for (const AddedToken& token : sorted) {
    list.push_back({{"id", token.id},
                    {"content", token.content},
                    {"single_word", token.single_word},
                    {"lstrip", token.lstrip},
                    {"rstrip", token.rstrip},
                    {"normalized", token.normalized},
                    {"special", token.special}});
  }
  nlohmann::json definition = file.json;
  definition["added_tokens"] = std::move(list);
  auto files = files_to_save(file.text, special, table);
  return std::make_unique<LibraryTokenizer>(definition, std::move(table), std::move(files), reason);
}

}  // namespace lazy
