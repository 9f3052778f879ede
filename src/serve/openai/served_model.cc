#include "serve/openai/served_model.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "core/error.h"
#include "core/file.h"
#include "core/json_field.h"
#include "core/python_json.h"
#include "core/text.h"

namespace lazy::serve {
namespace fs = std::filesystem;
using nlohmann::json;

std::string read_chat_template(const fs::path& folder, const char* operation) {
  if (const fs::path path = folder / "chat_template.jinja"; fs::exists(path)) return read_file(path);
  const fs::path path = folder / "tokenizer_config.json";
  if (!fs::exists(path)) return "";
  const json config = parse_python_json(read_file(path));
  if (!config.is_object()) fail(operation, "{}: expected a JSON object", path.string());
  const JsonField chat = JsonField(operation, config, path.string()).find("chat_template");
  if (!chat.present()) return "";
  if (!chat.json().is_array()) return chat.string();
  std::string found;
  for (size_t i = 0; i < chat.size(); ++i) {
    if (chat.at(i)["name"].string() == "default") found = chat.at(i)["template"].string();
  }
  return found;
}

nlohmann::ordered_json template_variables(const TokenTable& tokens) {
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  for (const auto& [name, text] : tokens.texts) out[name] = text;
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
  // A token covers at most longest_piece bytes of the normalized text. Normalization shortens a text by a factor of at
  // most 3 (a letter with a combining accent).
  return longest_piece > 0 && static_cast<int64_t>(text.size()) / (3 * longest_piece) > tokens;
}

std::vector<int64_t> ServedModel::encode(const std::string& text, bool add_special_tokens) const {
  std::vector<int64_t> out;
  // special_tokens contains only tokens that the tokenizer does not find itself (see special_tokens_of()). They are
  // matched here, and the tokenizer encodes the text between them.
  special_tokens.run(
      text,
      [&](std::string_view plain) {
        const auto ids = tokenizer->encode(plain);
        out.insert(out.end(), ids.begin(), ids.end());
      },
      [&](int32_t token) { out.push_back(token); });
  if (!add_special_tokens) return out;
  const auto& [prefix, suffix] = std::tie(tokenizer->tokens().prefix, tokenizer->tokens().suffix);
  if (out.size() < prefix.size() || !std::equal(prefix.begin(), prefix.end(), out.begin())) {
    out.insert(out.begin(), prefix.begin(), prefix.end());
  }
  out.insert(out.end(), suffix.begin(), suffix.end());
  return out;
}

std::vector<int64_t> ServedModel::encode_chat(const nlohmann::ordered_json& messages,
                                              const nlohmann::ordered_json& variables) const {
  // add_special_tokens is false, because the template itself writes the special tokens.
  return encode(chat->render(messages, variables), false);
}

AddedTokenMatcher special_tokens_of(const Tokenizer& tokenizer) {
  return AddedTokenMatcher(tokenizer.finds_special_tokens() ? std::vector<AddedToken>{} : tokenizer.tokens().added);
}

std::string ServedModel::decode(const std::vector<int64_t>& ids) const {
  const std::vector<int32_t> narrow(ids.begin(), ids.end());
  return to_valid_utf8(tokenizer->decode(narrow));
}

}  // namespace lazy::serve
