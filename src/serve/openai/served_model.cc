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
  for (const char* name : {"special_tokens_map.json", "tokenizer_config.json"}) {  // the latter counts
    const fs::path path = folder / name;
    const json object = read_object(path);
    const JsonField fields("serve", object, path.string());
    const auto take = [&](const char* key, std::string& into) {
      if (std::string found = token_of(fields.find(key)); !found.empty()) into = std::move(found);
    };
    take("bos_token", out.bos_token);
    take("eos_token", out.eos_token);
    take("pad_token", out.pad_token);
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
  const auto ids = tokenizer->encode(rest);
  out.insert(out.end(), ids.begin(), ids.end());
  return out;
}

std::vector<int64_t> ServedModel::tokenize(const std::string& text, bool bos) const {
  std::vector<int64_t> out =
      bos && tokenizer->bos_id() ? std::vector<int64_t>{*tokenizer->bos_id()} : std::vector<int64_t>{};
  if (!text.empty() && tokenizer->bos_id() && text == info.bos_token) return {*tokenizer->bos_id()};
  if (!text.empty() && tokenizer->eos_id() && (text == info.eos_token)) {
    out.push_back(*tokenizer->eos_id());
    return out;
  }
  return encode(text, bos);
}

std::string ServedModel::decode(const std::vector<int64_t>& ids) const {
  const std::vector<int32_t> narrow(ids.begin(), ids.end());
  return to_valid_utf8(tokenizer->decode(narrow));
}

}  // namespace lazy::serve
