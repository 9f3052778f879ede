#include "data/tokenizers/tokenizer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "core/file.h"
#include "data/tokenizers/unicode.h"
#include "data/tokenizers/vocabulary.h"

namespace lazy {

TokenizerJson::TokenizerJson(const std::filesystem::path& path) : path(path), text(read_file(path)) {
  try {
    json = nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& e) {
    fail("tokenizer", "{}: expected JSON, found an error at byte {}", path.string(), e.byte);
  } catch (const nlohmann::json::exception&) {  // the only other possible error is a number out of range
    fail("tokenizer", "{}: expected JSON, found a number that is out of range", path.string());
  }
}

bool TokenizerJson::is_sentencepiece() const {
  const auto model = json.find("model");
  if (!json.is_object() || model == json.end() || !model->is_object()) return false;
  const auto fallback = model->find("byte_fallback");
  return fallback != model->end() && *fallback == true;
}

void not_native(const JsonField& field) {
  throw NotNative(fmt::format("{} = {}", field.place(), field.present() ? json_summary(field.json()) : "null"));
}

void allow_keys(const JsonField& object, std::initializer_list<std::string_view> keys) {
  for (const auto& [key, value] : object.json().items()) {
    if (value.is_null() || value == false) continue;
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) not_native(object.find(key));
  }
}

std::vector<AddedToken> read_added_tokens(const JsonField& list, bool native) {
  std::vector<AddedToken> added;
  std::set<int32_t> ids;
  std::set<std::string> contents;
  if (!list.present()) return added;
  for (size_t i = 0; i < list.size(); ++i) {
    const JsonField entry = list.at(i);
    if (native) allow_keys(entry, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    const JsonField id = entry.find("id");
    if (!id.present() || !id.json().is_number_integer() || id.json() < 0 || id.json() >= (1 << 24)) {
      id.wrong("a number from 0 to 2^24 - 1");
    }
    AddedToken token;
    token.id = id.json().get<int32_t>();
    token.content = entry.find("content").string();
    if (native && token.content.empty()) not_native(entry.find("content"));
    token.single_word = entry.find("single_word").boolean(false);
    if (native && token.single_word) not_native(entry.find("single_word"));
    token.lstrip = entry.find("lstrip").boolean(false);
    token.rstrip = entry.find("rstrip").boolean(false);
    token.special = entry.find("special").boolean(false);
    token.normalized = entry.find("normalized").boolean(!token.special);
    const bool fresh = ids.insert(token.id).second, fresh_text = contents.insert(token.content).second;
    if (native && !(fresh && fresh_text)) not_native(entry);
    added.push_back(std::move(token));
  }
  return added;
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

namespace {

// Adds the ids that a template inserts before and after a text to table.prefix and table.suffix. Returns false if the
// template is not supported.
bool read_template(const JsonField& node, TokenTable& table) {
  const JsonField single = node.find("single");
  bool before = true;
  std::vector<int32_t> prefix, suffix;
  for (size_t i = 0; i < single.size(); ++i) {
    if (single.at(i).find("Sequence").present()) {
      if (!before || single.at(i).find("Sequence").find("id").string() != "A") return false;
      before = false;
      continue;
    }
    const JsonField ids = node.find("special_tokens").find(single.at(i)["SpecialToken"]["id"].string())["ids"];
    for (size_t n = 0; n < ids.size(); ++n) {
      if (!ids.at(n).json().is_number_integer() || ids.at(n).json() < 0 || ids.at(n).json() >= (1 << 24)) {
        ids.at(n).wrong("an id from 0 to 2^24 - 1");
      }
      (before ? prefix : suffix).push_back(ids.at(n).json().get<int32_t>());
    }
  }
  if (before) return false;
  table.prefix.insert(table.prefix.begin(), prefix.begin(), prefix.end());
  table.suffix.insert(table.suffix.end(), suffix.begin(), suffix.end());
  return true;
}

}  // namespace

bool read_post_processor(const JsonField& node, TokenTable& table) {
  if (!node.present()) return true;
  const std::string type = node.find("type").string();
  if (type == "ByteLevel") return true;  // this processor only changes offsets, not ids
  if (type == "TemplateProcessing") return node.find("single").json().is_array() && read_template(node, table);
  if (type == "Sequence") {
    const JsonField list = node.find("processors");
    for (size_t i = 0; i < list.size(); ++i) {
      if (!read_post_processor(list.at(i), table)) return false;
    }
    return true;
  }
  if (type != "BertProcessing" && type != "RobertaProcessing") return false;
  const auto id = [&](const char* key) {
    const JsonField pair = node[key];  // a token and its id, for example ["</s>", 2]
    if (pair.size() != 2 || !pair.at(1).json().is_number_integer()) pair.wrong("a list of a token and its id");
    return pair.at(1).json().get<int32_t>();
  };
  table.prefix.insert(table.prefix.begin(), id("cls"));
  table.suffix.push_back(id("sep"));
  return true;
}

std::map<std::string, std::string> files_to_save(std::string tokenizer_json, const SpecialTokens& special,
                                                 const TokenTable& table) {
  std::map<std::string, std::string> files = special.files();
  if (!tokenizer_json.empty()) files["tokenizer.json"] = std::move(tokenizer_json);
  if (!special.has_config()) {
    const bool named = !table.tokenizer_class.empty();
    nlohmann::ordered_json config = {{"tokenizer_class", named ? table.tokenizer_class : "PreTrainedTokenizerFast"},
                                     {"clean_up_tokenization_spaces", false}};
    for (const char* key : {"bos_token", "eos_token", "unk_token", "pad_token"}) {
      if (const auto text = table.texts.find(key); text != table.texts.end()) config[key] = text->second;
    }
    files["tokenizer_config.json"] = config.dump(2) + "\n";
  }
  return files;
}

void check_native(const std::vector<AddedToken>& added, const std::string& file) {
  const bool strips = std::any_of(added.begin(), added.end(), [](const AddedToken& token) { return token.rstrip; });
  for (const AddedToken& token : added) {
    const auto first = static_cast<unsigned char>(token.content[0]);
    // Hugging Face's `tokenizers` finds all added tokens before it removes the white space next to tokens with lstrip
    // or rstrip. A token that starts with white space may therefore overlap the white space of another token.
    if (token.single_word || (strips && (first <= ' ' || first >= 0x80))) {
      throw NotNative(fmt::format("{}: the added token \"{}\"", file, token.content));
    }
  }
}

// Functions that read byte-level BPE tokenizers.
namespace {

void read_normalizer(const JsonField& node, BpeDefinition& definition) {
  if (!node.present()) return;
  const std::string type = node.find("type").string();
  if (type == "Sequence") {
    allow_keys(node, {"type", "normalizers"});
    const JsonField list = node.find("normalizers");
    for (size_t i = 0; i < list.size(); ++i) read_normalizer(list.at(i), definition);
  } else if (type == "NFC" && has_nfc()) {
    allow_keys(node, {"type"});
    definition.nfc = true;
  } else {
    not_native(node.find("type"));
  }
}

void read_split(const JsonField& node, BpeDefinition& definition) {
  allow_keys(node, {"type", "pattern", "behavior", "invert"});
  const std::string behavior = node.find("behavior").string();
  const bool only_matches = behavior == "Removed" && node.find("invert").boolean(false);
  if (behavior != "Isolated" && !only_matches) not_native(node.find("behavior"));
  const JsonField pattern = node.find("pattern");
  if (!pattern.present()) pattern.wrong("a pattern");
  if (const JsonField regex = pattern.find("Regex"); regex.present()) {
    if (!definition.pre_tokenizer.add_split(regex.string(), regex.place(), only_matches)) not_native(regex);
  } else if (const JsonField text = pattern.find("String"); text.present() && !text.string().empty()) {
    definition.pre_tokenizer.add_literal_split(text.string(), only_matches);
  } else {
    not_native(pattern);
  }
}

// Adds the steps of a pre-tokenizer to the definition. Returns true if the last step is ByteLevel.
bool read_pre_tokenizer(const JsonField& node, BpeDefinition& definition) {
  if (!node.present()) not_native(node);
  const std::string type = node.find("type").string();
  if (type == "Sequence") {
    allow_keys(node, {"type", "pretokenizers"});
    const JsonField list = node.find("pretokenizers");
    bool byte_level = false;
    for (size_t i = 0; i < list.size(); ++i) {
      if (byte_level) not_native(list.at(i));
      byte_level = read_pre_tokenizer(list.at(i), definition);
    }
    return byte_level;
  }
  if (type == "ByteLevel") {
    allow_keys(node, {"type", "add_prefix_space", "use_regex", "trim_offsets"});
    if (node.find("add_prefix_space").boolean(true)) definition.pre_tokenizer.add_prefix_space();
    if (node.find("use_regex").boolean(true)) {
      definition.pre_tokenizer.add_split(kGpt2Pattern, "GPT-2's pattern", false);
    }
    return true;
  }
  if (type == "Split") {
    read_split(node, definition);
  } else if (type == "Digits") {
    allow_keys(node, {"type", "individual_digits"});
    const bool single = node.find("individual_digits").boolean(false);
    definition.pre_tokenizer.add_split(single ? R"(\p{N})" : R"(\p{N}+)", node.place(), false);
  } else {
    not_native(node.find("type"));
  }
  return false;
}

// A missing decoder is treated as ByteLevel. `tokenizers` would insert spaces between the tokens in this case.
void read_decoder(const JsonField& node) {
  if (!node.present()) return;
  if (node.find("type").string() != "ByteLevel") not_native(node.find("type"));
}

BpeVocabulary read_model(const JsonField& model, BpeDefinition& definition) {
  if (!model.present()) model.wrong("an object");
  if (const JsonField type = model.find("type"); type.present() && type.string() != "BPE") not_native(type);
  allow_keys(model, {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                     "byte_fallback", "ignore_merges", "vocab", "merges"});
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (const JsonField affix = model.find(key); affix.present() && !affix.string().empty()) not_native(affix);
  }
  if (const JsonField dropout = model.find("dropout"); dropout.present() && dropout.json() != 0.0) not_native(dropout);
  if (model.find("byte_fallback").boolean(false)) not_native(model.find("byte_fallback"));
  definition.ignore_merges = model.find("ignore_merges").boolean(false);
  const JsonField vocab = model.find("vocab");
  if (!vocab.present()) vocab.wrong("an object that maps tokens to ids");
  BpeVocabulary vocabulary(vocab.json(), vocab.place(), definition);
  if (model.find("unk_token").present() && !vocabulary.has_all_bytes()) not_native(model.find("unk_token"));
  const JsonField merges = model.find("merges");
  const size_t count = merges.size();
  definition.merges.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const JsonField entry = merges.at(i);
    const auto [left, right] = read_merge(entry);
    vocabulary.add_merge(left, right, entry.place());
  }
  return vocabulary;
}

}  // namespace

BpeDefinition read_byte_level(const TokenizerJson& file, const SpecialTokens& special) {
  BpeDefinition definition;
  const JsonField root = file.root();
  allow_keys(root, {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                    "decoder", "model"});
  const BpeVocabulary vocabulary = read_model(root.find("model"), definition);
  read_normalizer(root.find("normalizer"), definition);
  if (!read_pre_tokenizer(root.find("pre_tokenizer"), definition)) not_native(root.find("pre_tokenizer"));
  read_decoder(root.find("decoder"));
  std::vector<AddedToken> added = read_added_tokens(root.find("added_tokens"));
  definition.table = special.resolve(
      std::move(added), [&](const std::string& text) { return vocabulary.find(text); },
      [&](int32_t id) { return vocabulary.spelling(id); }, static_cast<int64_t>(definition.tokens.size()));
  check_native(definition.table.added, file.path.string());
  for (const AddedToken& token : definition.table.added) {
    const auto known = vocabulary.find(token.content);
    if ((token.normalized && definition.nfc && to_nfc(token.content) != token.content) ||
        (known && *known != token.id) || (!known && !vocabulary.spelling(token.id).empty())) {
      throw NotNative(fmt::format("{}: the added token \"{}\"", file.path.string(), token.content));
    }
    if (static_cast<size_t>(token.id) >= definition.tokens.size()) definition.tokens.resize(token.id + 1);
    // The content of an added token is decoded like any other token: printable characters are converted to bytes.
    definition.tokens[token.id] = printable_to_bytes(token.content).value_or(token.content);
  }
  definition.reachable.resize(definition.tokens.size());
  if (!read_post_processor(root.find("post_processor"), definition.table)) not_native(root.find("post_processor"));
  definition.files = files_to_save(file.text, special, definition.table);
  return definition;
}

BpeDefinition read_tokenizer_json(const std::filesystem::path& path) {
  return read_byte_level(TokenizerJson(path), SpecialTokens(path.parent_path()));
}

BpeDefinition read_vocab_and_merges(const std::filesystem::path& vocab, const std::filesystem::path& merges) {
  const std::string vocab_text = read_file(vocab), merges_text = read_file(merges);
  auto words = nlohmann::json::parse(vocab_text, nullptr, false);
  if (words.is_discarded()) fail("tokenizer", "{}: expected JSON", vocab.string());
  if (!words.is_object() || words.empty())
    fail("tokenizer", "{}: expected an object that maps tokens to ids", vocab.string());
  auto pairs = nlohmann::json::array();
  int64_t number = 0;
  for (size_t at = 0; at < merges_text.size();) {
    const size_t end = std::min(merges_text.find('\n', at), merges_text.size());
    std::string_view line(merges_text.data() + at, end - at);
    at = end + 1;
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with("#version")) continue;
    const size_t space = line.find(' ');
    if (space == 0 || space == std::string_view::npos || space + 1 == line.size() ||
        line.find(' ', space + 1) != std::string_view::npos) {
      fail("tokenizer", "{}:{}: expected two tokens with a space between them, found \"{}\"", merges.string(), number,
           line);
    }
    for (const std::string& token : {std::string(line.substr(0, space)), std::string(line.substr(space + 1)),
                                     std::string(line.substr(0, space)) + std::string(line.substr(space + 1))}) {
      if (!words.contains(token)) {
        fail("tokenizer", "{}:{}: token \"{}\" is not in {}", merges.string(), number, token, vocab.string());
      }
    }
    pairs.push_back({line.substr(0, space), line.substr(space + 1)});
  }

  SpecialTokens special(vocab.parent_path());
  special.set_default_class("GPT2Tokenizer");
  const std::string& name = special.tokenizer_class();
  const TokenizerClass* known = find_tokenizer_class(name);
  if (!known || !known->pattern) {
    fail("tokenizer",
         "{}: expected tokenizer.json, because it is unknown how tokenizer_class {} uses vocab.json and merges.txt; "
         "save_pretrained() of transformers writes tokenizer.json",
         vocab.parent_path().string(), name);
  }
  const std::string pattern = known->pattern;
  nlohmann::json steps = nlohmann::json::array();
  if (!pattern.empty()) {
    steps.push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
  }
  steps.push_back({{"type", "ByteLevel"},
                   {"add_prefix_space", special.flag("add_prefix_space").value_or(false)},
                   {"trim_offsets", true},
                   {"use_regex", pattern.empty()}});
  nlohmann::json json = {{"version", "1.0"},
                         {"added_tokens", nlohmann::json::array()},
                         {"normalizer", nullptr},
                         {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", steps}}},
                         {"decoder", {{"type", "ByteLevel"}}},
                         {"model", {{"type", "BPE"}, {"vocab", std::move(words)}, {"merges", std::move(pairs)}}}};
  if (known->nfc) json["normalizer"] = {{"type", "NFC"}};
  BpeDefinition definition = read_byte_level(TokenizerJson(vocab, std::move(json)), special);
  TokenTable& table = definition.table;
  table.tokenizer_class = name;
  if ((known->encloses || special.flag("add_bos_token").value_or(false)) && table.bos) table.prefix = {*table.bos};
  if ((known->encloses || special.flag("add_eos_token").value_or(false)) && table.eos) table.suffix = {*table.eos};
  definition.files = files_to_save("", special, table);
  definition.files["vocab.json"] = vocab_text;
  definition.files["merges.txt"] = merges_text;
  return definition;
}

}  // namespace lazy
