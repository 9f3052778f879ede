#include "generate/model_folder.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/python_json.h"
#include "model/config.h"
#include "model/folder_metadata.h"

namespace lazy {

ModelFolder load_model_folder(const std::filesystem::path& directory, const ModelOptions& options) {
  // The tokenizer is loaded first, so that a mismatch is reported before the weights are read.
  const ModelConfig config = ModelConfig::from_directory(directory);
  auto tokenizer = load_tokenizer(directory.string());
  check_tokenizer(config, tokenizer->fingerprint(), directory.string());
  return {open_model(directory, options), std::move(tokenizer)};
}

void save_model_folder(const LanguageModel& model, const Tokenizer& tokenizer, const std::filesystem::path& source,
                       const std::filesystem::path& target, const std::string& dtype) {
  model.save(target, dtype);
  tokenizer.save(target);
  keep_metadata(source, target, {tokenizer.bos_id(), tokenizer.eos_id()});
}

std::vector<int64_t> end_tokens(const std::filesystem::path& directory, const ModelConfig& config,
                                const Tokenizer& tokenizer) {
  std::vector<int64_t> out;
  const auto add = [&](int64_t id) {
    if (id >= 0 && std::find(out.begin(), out.end(), id) == out.end()) out.push_back(id);
  };
  add(config.eos_token_id);
  for (const char* name : {"config.json", "generation_config.json"}) {
    const std::filesystem::path path = directory / name;
    if (!std::filesystem::exists(path)) continue;
    const auto json = parse_python_json(read_file(path));
    if (!json.is_object()) fail("generate", "{}: expected a JSON object", path.string());
    const auto found = json.find("eos_token_id");
    if (found == json.end() || found->is_null()) continue;
    for (const auto& id : found->is_array() ? *found : nlohmann::json::array({*found})) {
      if (!id.is_number_integer()) {
        fail("generate", "{}: eos_token_id: expected an integer or a list of integers, found {}", path.string(),
             id.dump());
      }
      add(id.get<int64_t>());
    }
  }
  if (const auto eos = tokenizer.eos_id()) add(*eos);
  return out;
}

std::vector<int64_t> encode_prompt(const Tokenizer& tokenizer, const std::string& text, bool add_special_tokens) {
  const std::vector<int32_t> ids = tokenizer.encode(text);
  std::vector<int64_t> out(ids.begin(), ids.end());
  if (add_special_tokens) {
    const TokenTable& table = tokenizer.tokens();
    out.insert(out.begin(), table.prefix.begin(), table.prefix.end());
    out.insert(out.end(), table.suffix.begin(), table.suffix.end());
  }
  return out;
}

void check_embedding_rows(std::span<const int32_t> ids, const ModelConfig& config, const Tokenizer& tokenizer,
                          const char* operation) {
  for (const int32_t id : ids) {
    if (id < config.vocab_size) continue;
    fail(operation, "the text has token {} (\"{}\"), but the model's embedding has only {} rows (vocab_size)", id,
         tokenizer.piece(id), config.vocab_size);
  }
}

}  // namespace lazy
