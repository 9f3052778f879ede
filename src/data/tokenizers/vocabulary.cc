#include "data/tokenizers/vocabulary.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/json_field.h"
#include "core/python_json.h"
#include "data/tokenizers/unicode.h"

namespace lazy {
namespace fs = std::filesystem;
using Json = nlohmann::json;

void check_token_id(int32_t id, int64_t vocab_size) {
  if (id < 0 || id >= vocab_size) {
    fail("tokenizer", "id {} is out of range: expected 0 to {}", id, vocab_size - 1);
  }
}

BpeVocabulary::BpeVocabulary(const Json& vocab, std::string field, BpeDefinition& definition)
    : field_(std::move(field)), definition_(definition) {
  constexpr int64_t kMost = 1 << 24;
  if (!vocab.is_object() || vocab.empty()) {
    fail("tokenizer", "{}: expected an object of tokens and ids, found {}", field_,
         vocab.empty() ? "an empty one" : vocab.type_name());
  }
  for (const auto& [token, value] : vocab.items()) {
    if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() >= kMost) {
      fail("tokenizer", "{}: \"{}\": expected an id from 0 to {}, found {}", field_, token, kMost - 1,
           json_summary(value));
    }
    const auto id = value.get<int32_t>();
    if (static_cast<size_t>(id) >= definition.tokens.size()) definition.tokens.resize(id + 1);
    // Special tokens may be spelled as plain text.
    std::string bytes = printable_to_bytes(token).value_or(token);
    if (!definition.tokens[id].empty()) {
      fail("tokenizer", "{}: \"{}\": id {} is given to another token as well", field_, token, id);
    }
    definition.tokens[id] = std::move(bytes);
    ids_.emplace(token, id);
  }
  for (int b = 0; b < 256; ++b) {
    const std::string printable = bytes_to_printable(std::string(1, static_cast<char>(b)));
    if (!ids_.contains(printable)) {
      fail("tokenizer",
           "{}: expected a token for each of the 256 bytes (byte-level BPE), byte 0x{:02x} (\"{}\") has none", field_,
           b, printable);
    }
  }
}

std::optional<int32_t> BpeVocabulary::find(const std::string& token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

int32_t BpeVocabulary::id_of(const std::string& token, const std::string& where) const {
  const auto found = ids_.find(token);
  if (found == ids_.end()) fail("tokenizer", "{}: token \"{}\" is not in {}", where, token, field_);
  return found->second;
}

void BpeVocabulary::add_merge(std::string_view left, std::string_view right, const std::string& where) {
  const std::string first(left), second(right);
  definition_.merges.push_back({id_of(first, where), id_of(second, where), id_of(first + second, where)});
}

void read_special_tokens(const fs::path& folder, const std::string& default_class, BpeDefinition& definition) {
  // Added tokens first, then the vocabulary.
  const auto id_of = [&](const std::string& text) -> std::optional<int32_t> {
    for (const AddedToken& token : definition.added) {
      if (token.content == text) return token.id;
    }
    for (size_t id = 0; id < definition.tokens.size(); ++id) {
      if (definition.tokens[id] == text) return static_cast<int32_t>(id);
    }
    return std::nullopt;
  };
  // As in transformers 5, special_tokens_map.json counts unless tokenizer_config.json has added_tokens_decoder.
  Json merged;
  std::map<std::string, fs::path> source;  // of each key
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const fs::path path = folder / name;
    if (!fs::exists(path)) continue;
    std::string content = read_file(path);
    const auto object = parse_python_json<Json>(content);
    if (!object.is_object()) fail("tokenizer", "{}: expected a JSON object", path.string());
    definition.files[name] = std::move(content);
    if (merged.is_null()) merged = Json::object();
    if (merged.contains("added_tokens_decoder")) continue;
    for (const auto& [key, value] : object.items()) {
      merged[key] = value;
      source[key] = path;
    }
  }
  if (merged.is_object()) {
    const auto token = [&](const char* key) -> std::optional<int32_t> {
      const auto found = merged.find(key);
      if (found == merged.end() || found->is_null()) return std::nullopt;
      const Json& value = found->is_object() && found->contains("content") ? (*found)["content"] : *found;
      const std::string file = source[key].string();
      if (!value.is_string()) fail("tokenizer", "{}: {}: expected a token, found {}", file, key, json_summary(value));
      const auto id = id_of(value.get<std::string>());
      if (!id) fail("tokenizer", "{}: {}: \"{}\" is not in the vocabulary", file, key, value.get<std::string>());
      return id;
    };
    definition.bos = token("bos_token");
    definition.eos = token("eos_token");
    return;
  }
  const auto first_of = [&](std::initializer_list<const char*> names) -> std::optional<int32_t> {
    for (const char* name : names) {
      if (const auto id = id_of(name)) return id;
    }
    return std::nullopt;
  };
  definition.bos = first_of({"<|begin_of_text|>", "<|startoftext|>", "<s>", "<|endoftext|>"});
  definition.eos = first_of({"<|end_of_text|>", "<|endoftext|>", "</s>", "<|im_end|>"});
  nlohmann::ordered_json config = {{"tokenizer_class", default_class}, {"clean_up_tokenization_spaces", false}};
  const auto name = [&](const char* key, std::optional<int32_t> id) {
    if (!id) return;
    for (const AddedToken& token : definition.added) {
      if (token.id == *id) {
        config[key] = token.content;
        return;
      }
    }
    config[key] = definition.tokens[*id];
  };
  name("bos_token", definition.bos);
  name("eos_token", definition.eos);
  definition.files["tokenizer_config.json"] = config.dump(2) + "\n";
}

// GPT-2's two files.
BpeDefinition read_vocab_and_merges(const fs::path& vocab, const fs::path& merges) {
  BpeDefinition definition;
  std::string vocab_text = read_file(vocab), merges_text = read_file(merges);
  const auto json = Json::parse(vocab_text, nullptr, false);
  if (json.is_discarded()) fail("tokenizer", "{}: expected JSON", vocab.string());
  BpeVocabulary vocabulary(json, vocab.string(), definition);
  int64_t number = 0;
  for (size_t at = 0; at < merges_text.size();) {
    const size_t end = std::min(merges_text.find('\n', at), merges_text.size());
    std::string_view line(merges_text.data() + at, end - at);
    at = end + 1;
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (number == 1 && line.starts_with("#version"))) continue;
    const size_t space = line.find(' ');
    const std::string where = fmt::format("{}:{}", merges.string(), number);
    if (space == 0 || space == std::string_view::npos || space + 1 == line.size() ||
        line.find(' ', space + 1) != std::string_view::npos) {
      fail("tokenizer", "{}: expected two tokens with a space between them, found \"{}\"", where, line);
    }
    vocabulary.add_merge(line.substr(0, space), line.substr(space + 1), where);
  }
  definition.pre_tokenizer.add_split(kGpt2Pattern, "GPT-2's pattern", false);
  if (const auto id = vocabulary.find("<|endoftext|>")) {
    definition.added.push_back({.id = *id, .content = "<|endoftext|>", .special = true});
  }
  definition.files = {{"vocab.json", std::move(vocab_text)}, {"merges.txt", std::move(merges_text)}};
  read_special_tokens(vocab.parent_path(), "GPT2Tokenizer", definition);
  return definition;
}

}  // namespace lazy
