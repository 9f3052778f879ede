#include "data/tokenizers/tokenizer_json.h"

#include "core/file.h"

namespace lazy {

TokenizerJson::TokenizerJson(const std::filesystem::path& path) : path(path), text(read_file(path)) {
  try {
    json = Json::parse(text);
  } catch (const Json::parse_error& e) {
    fail("tokenizer", "{}: expected JSON, found an error at byte {}", path.string(), e.byte);
  } catch (const Json::exception&) {  // the only other one that parsing throws
    fail("tokenizer", "{}: expected JSON, found a number that is out of range", path.string());
  }
}

bool TokenizerJson::is_sentencepiece() const {
  const auto model = json.find("model");
  if (!json.is_object() || model == json.end() || !model->is_object()) return false;
  const auto fallback = model->find("byte_fallback");
  return fallback != model->end() && *fallback == true;
}

void read_added_tokens(const Node& list, BpeDefinition& definition) {
  if (!list.present()) return;
  for (size_t i = 0; i < list.size(); ++i) {
    const Node entry = list.at(i);
    const Node id = entry.at("id");
    if (!id.present() || !id.json->is_number_integer() || *id.json < 0 || *id.json >= (1 << 24)) {
      id.expected("a number from 0 to 2^24 - 1");
    }
    if (entry.at("single_word").boolean(false)) entry.at("single_word").expected("false (true is not supported)");
    AddedToken token;
    token.id = id.json->get<int32_t>();
    token.content = entry.at("content").string();
    if (token.content.empty()) entry.at("content").expected("a text");
    token.lstrip = entry.at("lstrip").boolean(false);
    token.rstrip = entry.at("rstrip").boolean(false);
    token.special = entry.at("special").boolean(false);
    token.normalized = entry.at("normalized").boolean(!token.special);
    if (static_cast<size_t>(token.id) >= definition.tokens.size()) definition.tokens.resize(token.id + 1);
    definition.tokens[token.id] = token.content;
    definition.added.push_back(std::move(token));
  }
}

std::pair<std::string, std::string> read_merge(const Node& entry) {
  if (!entry.json->is_string()) {
    if (!entry.json->is_array() || entry.json->size() != 2) entry.expected("a pair of tokens");
    return {entry.at(0).string(), entry.at(1).string()};
  }
  const std::string& text = entry.json->get_ref<const std::string&>();
  const size_t space = text.find(' ');
  if (space == 0 || space == std::string::npos || space + 1 == text.size() ||
      text.find(' ', space + 1) != std::string::npos) {
    entry.expected("two tokens with a space between them");
  }
  return {text.substr(0, space), text.substr(space + 1)};
}

}  // namespace lazy
