#include "data/tokenizers/tokenizer_json.h"

#include <cctype>

#include "core/error.h"
#include "core/file.h"
#include "data/tokenizers/unicode.h"
#include "data/tokenizers/vocabulary.h"

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

void read_added_tokens(const JsonField& list, BpeDefinition& definition) {
  if (!list.present()) return;
  for (size_t i = 0; i < list.size(); ++i) {
    const JsonField entry = list.at(i);
    const JsonField id = entry.find("id");
    if (!id.present() || !id.json().is_number_integer() || id.json() < 0 || id.json() >= (1 << 24)) {
      id.wrong("a number from 0 to 2^24 - 1");
    }
    if (entry.find("single_word").boolean(false)) entry.find("single_word").wrong("false (true is not supported)");
    AddedToken token;
    token.id = id.json().get<int32_t>();
    token.content = entry.find("content").string();
    if (token.content.empty()) entry.find("content").wrong("a text");
    token.lstrip = entry.find("lstrip").boolean(false);
    token.rstrip = entry.find("rstrip").boolean(false);
    token.special = entry.find("special").boolean(false);
    token.normalized = entry.find("normalized").boolean(!token.special);
    if (static_cast<size_t>(token.id) >= definition.tokens.size()) definition.tokens.resize(token.id + 1);
    definition.tokens[token.id] = token.content;
    definition.added.push_back(std::move(token));
  }
}

std::pair<std::string, std::string> read_merge(const JsonField& entry) {
  if (!entry.json().is_string()) {
    if (!entry.json().is_array() || entry.json().size() != 2) entry.wrong("a pair of tokens");
    return {entry.at(0).string(), entry.at(1).string()};
  }
  const std::string& text = entry.json().get_ref<const std::string&>();
  const size_t space = text.find(' ');
  if (space == 0 || space == std::string::npos || space + 1 == text.size() ||
      text.find(' ', space + 1) != std::string::npos) {
    entry.wrong("two tokens with a space between them");
  }
  return {text.substr(0, space), text.substr(space + 1)};
}

// Byte-level BPE. Settings beyond what is implemented are errors, never silent differences.
namespace {

void read_normalizer(const JsonField& node, BpeDefinition& definition) {
  if (!node.present()) return;
  const std::string type = node.find("type").string();
  if (type == "Sequence") {
    const JsonField list = node.find("normalizers");
    for (size_t i = 0; i < list.size(); ++i) read_normalizer(list.at(i), definition);
  } else if (type == "NFC") {
    if (!has_nfc()) node.find("type").wrong("no normalizer (NFC needs a build with libutf8proc)");
    definition.nfc = true;
  } else {
    node.find("type").wrong("\"NFC\" or \"Sequence\" (others are not supported)");
  }
}

void read_split(const JsonField& node, BpeDefinition& definition) {
  const JsonField pattern = node.find("pattern");
  if (!pattern.present()) pattern.wrong("a pattern");
  std::string regex;
  if (const JsonField found = pattern.find("Regex"); found.present()) {
    regex = found.string();
  } else if (const JsonField text = pattern.find("String"); text.present()) {
    for (const char c : text.string()) {
      if (!std::isalnum(static_cast<unsigned char>(c)) && static_cast<unsigned char>(c) < 0x80) regex += '\\';
      regex += c;
    }
  } else {
    pattern.wrong("{\"Regex\": ...} or {\"String\": ...}");
  }
  const std::string behavior = node.find("behavior").string();
  const bool invert = node.find("invert").boolean(false);
  if (behavior == "Removed" && invert) {
    definition.pre_tokenizer.add_split(regex, pattern.place(), true);
  } else if (behavior == "Isolated") {
    definition.pre_tokenizer.add_split(regex, pattern.place(), false);
  } else {
    node.find("behavior").wrong("\"Isolated\", or \"Removed\" with invert (others are not supported)");
  }
}

// True when the step was ByteLevel.
bool read_pre_tokenizer(const JsonField& node, BpeDefinition& definition) {
  if (!node.present()) node.wrong("a pre-tokenizer that ends in ByteLevel");
  const std::string type = node.find("type").string();
  if (type == "Sequence") {
    const JsonField list = node.find("pretokenizers");
    bool byte_level = false;
    for (size_t i = 0; i < list.size(); ++i) {
      if (byte_level) list.at(i).wrong("nothing after ByteLevel");
      byte_level = read_pre_tokenizer(list.at(i), definition);
    }
    return byte_level;
  }
  if (type == "ByteLevel") {
    if (node.find("add_prefix_space").boolean(true)) definition.pre_tokenizer.add_prefix_space();
    if (node.find("use_regex").boolean(true)) {
      definition.pre_tokenizer.add_split(kGpt2Pattern, "GPT-2's pattern", false);
    }
    return true;
  }
  if (type == "Split") {
    read_split(node, definition);
  } else if (type == "Digits") {
    const bool single = node.find("individual_digits").boolean(false);
    definition.pre_tokenizer.add_split(single ? R"(\p{N})" : R"(\p{N}+)", node.place(), false);
  } else {
    node.find("type").wrong("ByteLevel, Split, Digits or Sequence (others are not supported)");
  }
  return false;
}

void read_model(const JsonField& model, BpeDefinition& definition) {
  if (!model.present()) model.wrong("an object");
  if (const JsonField type = model.find("type"); type.present() && type.string() != "BPE") type.wrong("\"BPE\"");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (const JsonField affix = model.find(key); affix.present() && !affix.string().empty()) {
      affix.wrong("null (affixes are not supported)");
    }
  }
  if (const JsonField dropout = model.find("dropout"); dropout.present() && dropout.json() != 0.0) {
    dropout.wrong("null (dropout is not supported)");
  }
  if (model.find("byte_fallback").boolean(false)) {
    model.find("byte_fallback").wrong("false (this is not byte-level BPE; use the model's tokenizer.model)");
  }
  definition.ignore_merges = model.find("ignore_merges").boolean(false);
  const JsonField vocab = model.find("vocab");
  if (!vocab.present()) vocab.wrong("an object of tokens and ids");
  BpeVocabulary vocabulary(vocab.json(), vocab.place(), definition);
  const JsonField merges = model.find("merges");
  const size_t count = merges.size();
  definition.merges.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const JsonField entry = merges.at(i);
    const auto [left, right] = read_merge(entry);
    vocabulary.add_merge(left, right, entry.place());
  }
}

}  // namespace

BpeDefinition read_byte_level(TokenizerJson file) {
  BpeDefinition definition;
  const JsonField root = file.root();
  read_model(root.find("model"), definition);
  read_normalizer(root.find("normalizer"), definition);
  if (!read_pre_tokenizer(root.find("pre_tokenizer"), definition)) {
    root.find("pre_tokenizer").wrong("a pre-tokenizer that ends in ByteLevel");
  }
  read_added_tokens(root.find("added_tokens"), definition);
  definition.files["tokenizer.json"] = std::move(file.text);
  read_special_tokens(file.path.parent_path(), "PreTrainedTokenizerFast", definition);
  return definition;
}

BpeDefinition read_tokenizer_json(const std::filesystem::path& path) { return read_byte_level(TokenizerJson(path)); }

}  // namespace lazy
