#include "data/tokenizers/transformers_files.h"

#include <nlohmann/json.hpp>

#include "core/file.h"

namespace lazy {
namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

constexpr const char* kConfigName = "tokenizer_config.json";
constexpr const char* kBytesClass = "LazyBytesTokenizer";

}  // namespace

void write_sentencepiece_config(const fs::path& directory, const SentencePieceConfig& config) {
  Json json = {{"tokenizer_class", "LlamaTokenizer"}};
  const auto token = [&](const char* key, const std::string& piece) {
    json[key] = piece.empty() ? Json(nullptr) : Json(piece);
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

void write_bytes_config(const fs::path& directory) {
  const Json json = {{"tokenizer_class", kBytesClass}, {"vocab_size", 258}, {"bos_token_id", 256}, {"eos_token_id", 257}};
  write_file_atomic(directory / kConfigName, json.dump(2) + "\n");
}

bool is_bytes_config(const fs::path& directory) {
  if (!fs::exists(directory / kConfigName)) return false;
  const Json json = Json::parse(read_file(directory / kConfigName), nullptr, false);
  return json.is_object() && json.contains("tokenizer_class") && json["tokenizer_class"] == kBytesClass;
}

}  // namespace lazy
