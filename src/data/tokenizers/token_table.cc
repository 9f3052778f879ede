#include "data/tokenizers/token_table.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "core/error.h"
#include "core/file.h"
#include "core/json_field.h"
#include "core/python_json.h"

namespace lazy {
namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

namespace {

constexpr const char* kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen35Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr const char* kEnd = "<|endoftext|>";
constexpr TokenizerClass kClasses[] = {
    {"GPT2Tokenizer", kEnd, kEnd, kEnd, nullptr, nullptr, "", false, false},
    {"CodeGenTokenizer", kEnd, kEnd, kEnd, nullptr, nullptr, "", false, false},
    {"GPTNeoXTokenizer", kEnd, kEnd, kEnd, "<|padding|>", nullptr, "", true, false},
    {"Qwen2Tokenizer", nullptr, kEnd, kEnd, kEnd, nullptr, kQwen2Pattern, true, false},
    {"Qwen3_5Tokenizer", nullptr, kEnd, kEnd, kEnd, nullptr, kQwen35Pattern, true, false},
    {"RobertaTokenizer", "<s>", "</s>", "<unk>", "<pad>", "<mask>", "", false, true},
    {"BartTokenizer", "<s>", "</s>", "<unk>", "<pad>", "<mask>", "", false, true},
    {"LlamaTokenizer", "<s>", "</s>", "<unk>", nullptr, nullptr, nullptr, false, false},
    {"GemmaTokenizer", "<bos>", "<eos>", "<unk>", "<pad>", "<mask>", nullptr, false, false},
};

// Maps the model_type in config.json to the tokenizer class that is used if a folder does not specify a class.
constexpr std::pair<const char*, const char*> kClassOfModel[] = {
    {"gpt2", "GPT2Tokenizer"},        {"gpt_neo", "GPT2Tokenizer"},     {"gptj", "GPT2Tokenizer"},
    {"codegen", "GPT2Tokenizer"},     {"phi", "GPT2Tokenizer"},         {"opt", "GPT2Tokenizer"},
    {"starcoder2", "GPT2Tokenizer"},  {"gpt_neox", "GPTNeoXTokenizer"}, {"mamba", "GPTNeoXTokenizer"},
    {"mamba2", "GPTNeoXTokenizer"},   {"mpt", "GPTNeoXTokenizer"},      {"olmo", "GPTNeoXTokenizer"},
    {"olmoe", "GPTNeoXTokenizer"},    {"rwkv", "GPTNeoXTokenizer"},     {"qwen2", "Qwen2Tokenizer"},
    {"qwen2_moe", "Qwen2Tokenizer"},  {"qwen3", "Qwen2Tokenizer"},      {"qwen3_moe", "Qwen2Tokenizer"},
    {"qwen3_next", "Qwen2Tokenizer"}, {"qwen3_5", "Qwen3_5Tokenizer"},  {"qwen3_5_text", "Qwen3_5Tokenizer"},
    {"roberta", "RobertaTokenizer"},  {"bart", "RobertaTokenizer"},     {"gemma", "GemmaTokenizer"},
    {"gemma2", "GemmaTokenizer"},     {"gemma3", "GemmaTokenizer"},     {"gemma3_text", "GemmaTokenizer"},
};

// The keys of special tokens, in the order in which transformers adds their texts to the vocabulary.
constexpr const char* kKeys[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                 "pad_token", "cls_token", "mask_token"};

bool is_key(const std::string& key) { return std::find(std::begin(kKeys), std::end(kKeys), key) != std::end(kKeys); }

// Reads a token from a JSON value, which is either a string ("</s>") or an object ({"content": "</s>", "lstrip": ...,
// ...}).
AddedToken read_token(const OrderedJsonField& field) {
  AddedToken token{.id = -1, .content = "", .special = true};
  if (!field.json().is_object()) {
    token.content = field.string();
    return token;
  }
  token.content = field["content"].string();
  token.lstrip = field.find("lstrip").boolean(false);
  token.rstrip = field.find("rstrip").boolean(false);
  token.single_word = field.find("single_word").boolean(false);
  token.special = field.find("special").boolean(false);
  token.normalized = field.find("normalized").boolean(!token.special);
  return token;
}

int32_t read_id(const OrderedJsonField& field) {
  const OrderedJson& id = field.json();
  if (!id.is_number_integer() || id < 0 || id >= (1 << 24)) field.wrong("an id from 0 to 2^24 - 1");
  return id.get<int32_t>();
}

}  // namespace

bool TokenTable::is_special(int32_t id) const { return std::binary_search(special_ids.begin(), special_ids.end(), id); }

void TokenTable::index() {
  special_ids.clear();
  for (const AddedToken& token : added) {
    if (token.special) special_ids.push_back(token.id);
  }
  std::sort(special_ids.begin(), special_ids.end());
}

const TokenizerClass* find_tokenizer_class(std::string_view name) {
  for (const TokenizerClass& known : kClasses) {
    if (name == known.name) return &known;
  }
  return nullptr;
}

// The content of one JSON file of the folder. `json` is an empty object if the file is missing.
struct SpecialTokens::Source {
  OrderedJson json = OrderedJson::object();
  std::string path;
  bool present = false;

  Source(const fs::path& folder, const char* name, std::map<std::string, std::string>* files)
      : path((folder / name).string()) {
    if (!fs::exists(path)) return;
    present = true;
    std::string content = read_file(path);
    json = parse_python_json<OrderedJson>(content);
    if (!json.is_object()) fail("tokenizer", "{}: expected a JSON object", path);
    if (files) (*files)[name] = std::move(content);
  }
  OrderedJsonField fields() const { return {"tokenizer", json, path}; }
};

SpecialTokens::SpecialTokens(const fs::path& folder) : folder_(folder.string()) {
  const Source config(folder, "tokenizer_config.json", &files_), map(folder, "special_tokens_map.json", &files_),
      added(folder, "added_tokens.json", &files_), model(folder, "config.json", nullptr);

  if (const auto name = config.fields().find("tokenizer_class"); name.present()) class_ = name.string();
  if (class_.ends_with("Fast") && class_ != "PreTrainedTokenizerFast") class_.resize(class_.size() - 4);
  if (class_.empty() && model.json.contains("model_type")) {
    for (const auto& [type, name] : kClassOfModel) {
      if (model.json["model_type"] == type) class_ = name;
    }
  }

  // Reads named tokens (such as bos_token) from a file. If several files define a standard key, the last file is used.
  const auto take_named = [&](const Source& source) {
    for (const auto& [key, value] : source.json.items()) {
      const bool standard = is_key(key);
      const bool token = value.is_string() || (value.is_object() && value.contains("content"));
      if (!standard && !(key.ends_with("_token") && token)) continue;
      const auto same = [&, key = key](const auto& entry) { return entry.first == key; };
      // If several files define a non-standard key, the first file is used.
      if (!standard && std::any_of(named_.begin(), named_.end(), same)) continue;
      std::erase_if(named_, same);
      std::erase(unset_, key);
      if (value.is_null()) {
        unset_.push_back(key);
      } else {
        named_.emplace_back(key, read_token(source.fields()[key]));
      }
    }
  };
  const auto take_extra = [&](const Source& source, const char* key) {
    const auto list = source.fields().find(key);
    if (!list.present()) return;
    if (list.json().is_object()) {  // tokens by name, as in {"image_token": "<image>"}
      for (const auto& [name, value] : list.json().items()) {
        std::erase_if(named_, [&, name = name](const auto& entry) { return entry.first == name; });
        named_.emplace_back(name, read_token(list[name]));
      }
      return;
    }
    for (size_t i = 0; i < list.size(); ++i) {
      AddedToken token = read_token(list.at(i));
      token.special = true;
      extra_.push_back(std::move(token));
    }
  };
  take_named(config);
  const auto given = config.fields().find("extra_special_tokens");
  const bool extra = given.present() && !given.json().empty();
  take_extra(config, extra ? "extra_special_tokens" : "additional_special_tokens");

  const auto read_added = [&](const Source& source, const OrderedJsonField& list) {
    for (const auto& [id, value] : list.json().items()) {
      AddedToken token = read_token(list[id]);
      const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), token.id);
      if (error != std::errc() || end != id.data() + id.size() || token.id < 0 || token.id >= (1 << 24)) {
        fail("tokenizer", "{}: added_tokens_decoder: expected ids from 0 to 2^24 - 1 as keys, found \"{}\"",
             source.path, id);
      }
      added_.push_back(std::move(token));
    }
  };
  if (const auto list = config.fields().find("added_tokens_decoder"); list.present()) {
    if (!list.json().is_object()) list.wrong("an object that maps token ids to tokens");
    read_added(config, list);
    added_counts_ = true;
  } else {
    take_named(map);
    take_extra(map, "extra_special_tokens");
    if (!extra) take_extra(map, "additional_special_tokens");
    std::set<std::string> specials;
    for (const auto& [key, token] : named_) specials.insert(token.content);
    for (const AddedToken& token : extra_) specials.insert(token.content);
    for (const auto& [text, id] : added.json.items()) {
      const bool special = specials.contains(text);
      added_.push_back(
          {.id = read_id(added.fields()[text]), .content = text, .special = special, .normalized = !special});
    }
  }

  for (const auto& [key, value] : config.json.items()) {
    if (value.is_boolean()) flags_[key] = value.get<bool>();
  }
  const auto model_id = [&](const char* key) -> std::optional<int32_t> {
    auto field = model.json.find(key);
    if (field == model.json.end()) return std::nullopt;
    const OrderedJson& value = field->is_array() && !field->empty() ? field->front() : *field;
    if (!value.is_number_integer() || value < 0 || value >= (1 << 24)) return std::nullopt;
    return value.get<int32_t>();
  };
  config_bos_ = model_id("bos_token_id");
  config_eos_ = model_id("eos_token_id");
}

std::optional<bool> SpecialTokens::flag(const std::string& key) const {
  const auto found = flags_.find(key);
  return found == flags_.end() ? std::nullopt : std::optional(found->second);
}

TokenTable SpecialTokens::resolve(std::vector<AddedToken> added,
                                  const std::function<std::optional<int32_t>(const std::string&)>& find,
                                  const std::function<std::string(int32_t)>& text_of, int64_t size) const {
  TokenTable table{.added = std::move(added),
                   .texts = {},
                   .bos = {},
                   .eos = {},
                   .prefix = {},
                   .suffix = {},
                   .tokenizer_class = class_,
                   .special_ids = {}};
  // Maps from a text and from an id to the index in table.added of the first token with this text or id.
  std::unordered_map<std::string, size_t> by_text;
  std::unordered_map<int32_t, size_t> by_id;
  int64_t next = size;
  for (size_t n = 0; n < table.added.size(); ++n) {
    by_text.try_emplace(table.added[n].content, n);
    by_id.try_emplace(table.added[n].id, n);
    next = std::max<int64_t>(next, table.added[n].id + 1);
  }
  const auto entry = [&](const std::string& text) {
    const auto found = by_text.find(text);
    return found == by_text.end() ? nullptr : &table.added[found->second];
  };
  const auto add = [&](AddedToken token) {
    if (token.content.empty()) return;
    if (const auto known = find(token.content)) {
      token.id = *known;
    } else if (token.id < 0) {
      token.id = static_cast<int32_t>(next);
    } else if (token.id < size && !text_of(token.id).empty()) {
      fail("tokenizer", "{}: id {} is assigned to \"{}\", but belongs to \"{}\" in the vocabulary", folder_, token.id,
           token.content, text_of(token.id));
    }
    if (const auto other = by_id.find(token.id); other != by_id.end()) {
      fail("tokenizer", "{}: id {} is assigned to both \"{}\" and \"{}\"", folder_, token.id,
           table.added[other->second].content, token.content);
    }
    next = std::max<int64_t>(next, token.id + 1);
    by_text.try_emplace(token.content, table.added.size());
    by_id.try_emplace(token.id, table.added.size());
    table.added.push_back(std::move(token));
  };

  for (const AddedToken& token : added_) {
    AddedToken* known = entry(token.content);
    if (!known) {
      add(token);
    } else if (added_counts_) {
      const int32_t id = known->id;
      *known = token;
      known->id = id;
    }
  }
  // A token that is listed in a file keeps its flags. If a key occurs several times with different texts, the last text
  // is used.
  std::set<std::string> listed;
  for (const AddedToken& token : table.added) listed.insert(token.content);
  const auto make_special = [&](const AddedToken& token) {
    AddedToken special = token;
    special.special = true;
    AddedToken* known = entry(token.content);
    if (!known) {
      add(std::move(special));
    } else if (listed.contains(token.content)) {
      known->special = true;
    } else {
      special.id = known->id;
      *known = std::move(special);
    }
  };
  const auto name = [&](const std::string& key, const AddedToken& token) {
    make_special(token);
    table.texts[key] = token.content;
  };
  for (const char* key : kKeys) {
    for (const auto& [named, token] : named_) {
      if (named == key) name(key, token);
    }
  }
  for (const auto& [key, token] : named_) {
    if (!is_key(key)) name(key, token);
  }
  for (const AddedToken& token : extra_) make_special(token);

  // Applies defaults if the vocabulary contains them: first the texts that the tokenizer class defines, then the ids in
  // config.json.
  const auto is_set = [&](const std::string& key) {
    return table.texts.contains(key) || std::find(unset_.begin(), unset_.end(), key) != unset_.end();
  };
  const auto can_default = [&](const char* key, const std::string& text) {
    return !text.empty() && !is_set(key) && (entry(text) || find(text));
  };
  if (const TokenizerClass* known = find_tokenizer_class(class_)) {
    for (const auto& [key, text] : {std::pair("bos_token", known->bos),
                                    {"eos_token", known->eos},
                                    {"unk_token", known->unk},
                                    {"pad_token", known->pad},
                                    {"mask_token", known->mask}}) {
      if (text && can_default(key, text)) name(key, {.id = -1, .content = text, .special = true});
    }
  }
  // The following code guesses BOS and EOS if they are still undefined. transformers makes no such guesses. A guessed
  // token is not recognized in texts.
  const auto guess = [&](const char* key, const std::string& text) {
    if (can_default(key, text)) table.texts[key] = text;
  };
  if (!is_set("bos_token") && !is_set("eos_token")) {
    const auto text = [&](std::optional<int32_t> id) {
      if (!id) return std::string();
      if (const auto token = by_id.find(*id); token != by_id.end()) return table.added[token->second].content;
      return *id < size ? text_of(*id) : std::string();
    };
    guess("bos_token", text(config_bos_));
    guess("eos_token", text(config_eos_));
  }
  // If the tokenizer is a single file without a configuration, well-known names of BOS and EOS are tried.
  if (!has_config() && class_.empty() && table.texts.empty()) {
    for (const char* text : {"<|begin_of_text|>", "<|startoftext|>", "<s>", "<|endoftext|>"}) {
      guess("bos_token", text);
    }
    for (const char* text : {"<|end_of_text|>", "<|endoftext|>", "</s>", "<|im_end|>"}) guess("eos_token", text);
  }

  const auto id_of = [&](const char* key) -> std::optional<int32_t> {
    const auto text = table.texts.find(key);
    if (text == table.texts.end()) return std::nullopt;
    const AddedToken* found = entry(text->second);
    return found ? std::optional(found->id) : find(text->second);
  };
  table.bos = id_of("bos_token");
  table.eos = id_of("eos_token");
  table.index();
  return table;
}

}  // namespace lazy
