#include "serve/openai/served_model.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/json_field.h"
#include "core/python_json.h"
#include "core/text.h"

namespace lazy::serve {
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

json read_object(const fs::path& path) {
  if (!fs::exists(path)) return json::object();
  json value = parse_python_json(read_file(path));
  if (!value.is_object()) fail("serve", "{}: expected a JSON object", path.string());
  return value;
}

// "</s>", or {"content": "</s>", ...}.
std::string token_of(const JsonField& field) {
  if (!field.present()) return "";
  return field.json().is_object() ? field["content"].string() : field.string();
}

}  // namespace

TokenizerInfo read_tokenizer_info(const fs::path& folder) {
  TokenizerInfo out;
  // As in transformers 5, special_tokens_map.json counts unless tokenizer_config.json has added_tokens_decoder.
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const fs::path path = folder / name;
    if (!out.added.empty()) break;
    const json object = read_object(path);
    const JsonField fields("serve", object, path.string());
    const auto take = [&](const char* key, std::string& into) {
      if (std::string found = token_of(fields.find(key)); !found.empty()) into = std::move(found);
    };
    take("bos_token", out.bos_token);
    take("eos_token", out.eos_token);
    take("pad_token", out.pad_token);
    take("unk_token", out.unk_token);
    if (const auto added = fields.find("added_tokens_decoder"); added.present() && added.json().is_object()) {
      for (const auto& [id, token] : added.json().items()) {
        const JsonField entry("serve", token, path.string() + ": added_tokens_decoder." + id);
        out.added[entry["content"].string()] = static_cast<int32_t>(std::strtol(id.c_str(), nullptr, 10));
      }
    }
    if (const auto kind = fields.find("tokenizer_class"); kind.present()) out.tokenizer_class = kind.string();
    const auto chat = fields.find("chat_template");
    if (!chat.present()) continue;
    if (!chat.json().is_array()) {
      out.chat_template = chat.string();
      continue;
    }
    for (size_t i = 0; i < chat.size(); ++i) {  // several by name: the one called "default"
      if (chat.at(i)["name"].string() == "default") out.chat_template = chat.at(i)["template"].string();
    }
  }
  if (const fs::path path = folder / "chat_template.jinja"; fs::exists(path)) out.chat_template = read_file(path);
  return out;
}

nlohmann::ordered_json TokenizerInfo::template_variables() const {
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  for (const auto& [name, text] : {std::pair{"bos_token", bos_token},
                                   {"eos_token", eos_token},
                                   {"unk_token", unk_token},
                                   {"pad_token", pad_token}}) {
    if (!text.empty()) out[name] = text;
  }
  return out;
}

int64_t longest_piece_of(const Tokenizer& tokenizer) {
  size_t longest = 1;
  for (int64_t id = 0; id < tokenizer.vocab_size(); ++id) {
    longest = std::max(longest, tokenizer.piece(static_cast<int32_t>(id)).size());
  }
  return static_cast<int64_t>(longest);
}

bool ServedModel::surely_longer(const std::string& text, int64_t tokens) const {
  // Normalization may shorten a text, by a factor of 3 at most (a letter and its accent).
  return longest_piece > 0 && static_cast<int64_t>(text.size()) / (3 * longest_piece) > tokens;
}

std::vector<int64_t> ServedModel::encode(const std::string& text, bool bos) const {
  std::vector<int64_t> out;
  std::string_view rest = text;
  const auto id = tokenizer->bos_id();
  if (id && !info.bos_token.empty() && rest.starts_with(info.bos_token)) {
    rest.remove_prefix(info.bos_token.size());
    bos = true;
  }
  if (bos && id) out.push_back(*id);
  // Tokenizers that find special tokens in texts find none in what is left.
  special_tokens.run(
      rest,
      [&](std::string_view plain) {
        const auto ids = tokenizer->encode(plain);
        out.insert(out.end(), ids.begin(), ids.end());
      },
      [&](int32_t token) { out.push_back(token); });
  return out;
}

AddedTokenMatcher special_tokens_of(const TokenizerInfo& info, const Tokenizer& tokenizer) {
  std::map<std::string, int32_t> all;
  if (!tokenizer.finds_special_tokens()) {
    all = info.added;
    if (tokenizer.bos_id() && !info.bos_token.empty()) all[info.bos_token] = *tokenizer.bos_id();
    if (tokenizer.eos_id() && !info.eos_token.empty()) all[info.eos_token] = *tokenizer.eos_id();
  }
  std::vector<AddedToken> tokens;
  for (const auto& [text, id] : all) {
    if (!text.empty() && id >= 0 && id < tokenizer.vocab_size())
      tokens.push_back({.id = id, .content = text, .special = true});
  }
  return AddedTokenMatcher(std::move(tokens));
}

std::string ServedModel::decode(const std::vector<int64_t>& ids) const {
  const std::vector<int32_t> narrow(ids.begin(), ids.end());
  return to_valid_utf8(tokenizer->decode(narrow));
}

}  // namespace lazy::serve
