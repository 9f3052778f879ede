#include "data/tokenizers/vocabulary.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json_field.h"
#include "data/tokenizers/tokenizer_json.h"
#include "data/tokenizers/unicode.h"

namespace lazy {

void check_token_id(int32_t id, int64_t vocab_size) {
  if (id < 0 || id >= vocab_size) {
    fail("tokenizer", "id {} is out of range: expected 0 to {}", id, vocab_size - 1);
  }
}

BpeVocabulary::BpeVocabulary(const nlohmann::json& vocab, std::string field, BpeDefinition& definition)
    : field_(std::move(field)), definition_(definition) {
  constexpr int64_t kMost = 1 << 24;
  if (!vocab.is_object() || vocab.empty()) {
    fail("tokenizer", "{}: expected an object that maps tokens to ids, found {}", field_,
         vocab.empty() ? "an empty one" : vocab.type_name());
  }
  for (const auto& [token, value] : vocab.items()) {
    if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() >= kMost) {
      fail("tokenizer", "{}: \"{}\": expected an id from 0 to {}, found {}", field_, token, kMost - 1,
           json_summary(value));
    }
    const auto id = value.get<int32_t>();
    if (static_cast<size_t>(id) >= definition.tokens.size()) definition.tokens.resize(id + 1);
    if (!spellings_.emplace(id, token).second) {
      throw NotNative(fmt::format("{}: \"{}\": the same id {} for two tokens", field_, token, id));
    }
    const std::optional<std::string> bytes = printable_to_bytes(token);
    definition.reachable.resize(definition.tokens.size());
    definition.reachable[id] = bytes.has_value();
    definition.tokens[id] = bytes.value_or(token);
    ids_.emplace(token, id);
  }
}

bool BpeVocabulary::has_all_bytes() const {
  for (int b = 0; b < 256; ++b) {
    if (!ids_.contains(bytes_to_printable(std::string(1, static_cast<char>(b))))) return false;
  }
  return true;
}

std::string BpeVocabulary::spelling(int32_t id) const {
  const auto found = spellings_.find(id);
  return found == spellings_.end() ? "" : found->second;
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
  const int32_t a = id_of(first, where), b = id_of(second, where);
  if (!pairs_.insert(static_cast<uint64_t>(static_cast<uint32_t>(a)) << 32 | static_cast<uint32_t>(b)).second) {
    throw NotNative(fmt::format("{}: a repeated merge of the pair \"{}\" \"{}\"", where, first, second));
  }
  definition_.merges.push_back({a, b, id_of(first + second, where)});
}

}  // namespace lazy
