#include "data/tokenizers/transformers_files.h"

#include <nlohmann/json.hpp>

#include "core/file.h"
#include "core/python_json.h"

namespace lazy {
namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

namespace {

constexpr const char* kConfigName = "tokenizer_config.json";
constexpr const char* kWrittenSpaceSymbol = "\xE2\x96\x81";
constexpr const char* kBytesClass = "LazyBytesTokenizer";

}  // namespace

void write_sentencepiece_config(const fs::path& directory, const SentencePieceConfig& config) {
  OrderedJson json = {{"tokenizer_class", config.has_json ? "PreTrainedTokenizerFast" : "LlamaTokenizer"}};
  const auto token = [&](const char* key, const std::string& piece) {
    json[key] = piece.empty() ? OrderedJson(nullptr) : OrderedJson(piece);
  };
  token("bos_token", config.bos_token);
  token("eos_token", config.eos_token);
  token("unk_token", config.unk_token);
  json["add_bos_token"] = !config.bos_token.empty();
  json["add_eos_token"] = false;
  json["add_prefix_space"] = config.add_prefix_space;
  json["clean_up_tokenization_spaces"] = false;
  json["legacy"] = false;
  write_file_atomic(directory / kConfigName, json.dump(2) + "\n");
}

std::string sentencepiece_json(const SentencePieceConfig& config, const std::vector<SentencePiece>& pieces) {
  const OrderedJson space = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kWrittenSpaceSymbol}};
  const OrderedJson no_space = {{"type", "Replace"}, {"pattern", {{"String", kWrittenSpaceSymbol}}}, {"content", " "}};
  OrderedJson normalizers = OrderedJson::array({space});
  OrderedJson decoders = OrderedJson::array({no_space, {{"type", "ByteFallback"}}, {{"type", "Fuse"}}});
  if (config.add_prefix_space) {
    normalizers.insert(normalizers.begin(), OrderedJson{{"type", "Prepend"}, {"prepend", kWrittenSpaceSymbol}});
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  OrderedJson vocab = OrderedJson::object(), added = OrderedJson::array(), merges = OrderedJson::array();
  int32_t bos = -1;
  for (size_t id = 0; id < pieces.size(); ++id) {
    const std::string& text = pieces[id].text;
    // The pieces are unique, so no lookup for an equal key is needed before a key is added.
    vocab.get_ref<OrderedJson::object_t&>().emplace_back(text, id);
    if (text == config.bos_token) bos = static_cast<int32_t>(id);
    if (text == config.bos_token || text == config.eos_token || text == config.unk_token) {
      added.push_back({{"id", id},
                       {"content", text},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", true}});
    }
  }
  for (const SentencePieceMerge& merge : sentencepiece_merges(pieces)) {
    merges.push_back({pieces[merge.left].text, pieces[merge.right].text});
  }
  OrderedJson processor;
  if (bos >= 0) {
    const auto token = [](const char* kind, const std::string& name) {
      return OrderedJson{{kind, {{"id", name}, {"type_id", 0}}}};
    };
    const OrderedJson first = token("SpecialToken", config.bos_token);
    processor = {{"type", "TemplateProcessing"},
                 {"single", OrderedJson::array({first, token("Sequence", "A")})},
                 {"pair", OrderedJson::array({first, token("Sequence", "A"), token("Sequence", "B")})},
                 {"special_tokens",
                  {{config.bos_token,
                    {{"id", config.bos_token},
                     {"ids", OrderedJson::array({bos})},
                     {"tokens", OrderedJson::array({config.bos_token})}}}}}};
  }
  const OrderedJson json = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added},
      {"normalizer", {{"type", "Sequence"}, {"normalizers", normalizers}}},
      {"pre_tokenizer", nullptr},
      {"post_processor", processor},
      {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", config.unk_token.empty() ? OrderedJson(nullptr) : OrderedJson(config.unk_token)},
        {"continuing_subword_prefix", nullptr},
        {"end_of_word_suffix", nullptr},
        {"fuse_unk", true},
        {"byte_fallback", true},
        {"ignore_merges", false},
        {"vocab", vocab},
        {"merges", merges}}}};
  return json.dump() + "\n";
}

void write_bytes_config(const fs::path& directory) {
  const OrderedJson json = {
      {"tokenizer_class", kBytesClass}, {"vocab_size", 258}, {"bos_token_id", 256}, {"eos_token_id", 257}};
  write_file_atomic(directory / kConfigName, json.dump(2) + "\n");
}

bool is_bytes_config(const fs::path& directory) {
  if (!fs::exists(directory / kConfigName)) return false;
  const auto json = parse_python_json<OrderedJson>(read_file(directory / kConfigName));
  return json.is_object() && json.contains("tokenizer_class") && json["tokenizer_class"] == kBytesClass;
}

}  // namespace lazy
