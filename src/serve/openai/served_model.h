// A model as the protocol sees it: its name, its tokenizer, its engine.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "data/tokenizers/added_tokens.h"
#include "serve/attention_service.h"
#include "serve/generation.h"
#include "serve/openai/chat_template.h"
#include "serve/openai/metrics.h"

namespace lazy::serve {

// What tokenizer_config.json says beside the vocabulary. Empty where it says nothing.
struct TokenizerInfo {
  std::string tokenizer_class, bos_token, eos_token, pad_token, unk_token, chat_template;
  std::map<std::string, int32_t> added;  // text and id of added_tokens_decoder and added_tokens.json

  // What templates see: the texts of the special tokens that are set.
  nlohmann::ordered_json template_variables() const;
};

// From tokenizer_config.json, special_tokens_map.json and chat_template.jinja of a model folder; files that are missing
// leave fields empty. Error naming file and field.
TokenizerInfo read_tokenizer_info(const std::filesystem::path& folder);

int64_t longest_piece_of(const Tokenizer& tokenizer);

// Finds in a text the special tokens that the tokenizer itself would encode as letters.
AddedTokenMatcher special_tokens_of(const TokenizerInfo& info, const Tokenizer& tokenizer);

struct ServedModel {
  std::string id;
  std::shared_ptr<const Tokenizer> tokenizer;
  GenerationService* engine = nullptr;    // outlives the server and the requests
  AttentionService* attention = nullptr;  // the same; null: no weights to show
  TokenizerInfo info;
  std::shared_ptr<ChatTemplate> chat;  // null without a usable template
  std::string chat_problem;            // why the folder's template is not usable; empty: it has none
  std::vector<int64_t> stop_tokens;    // end every text: EOS
  int64_t vocab_size = 0;              // of the model, which may have more rows than the tokenizer has tokens
  int64_t created = 0;                 // seconds since 1970
  int64_t longest_piece = 0;           // bytes of a token at most; 0: not known
  AddedTokenMatcher special_tokens = AddedTokenMatcher({});  // special_tokens_of()
  std::shared_ptr<ModelMetrics> metrics = std::make_shared<ModelMetrics>();

  // The text has more tokens than `tokens`, whatever they are: found without encoding it.
  bool surely_longer(const std::string& text, int64_t tokens) const;
  // Ids of a text, with BOS first if `bos` is set and the tokenizer has one; a text that itself begins with BOS's text
  // has it once. Special tokens in the text become their ids for every kind of tokenizer, as with transformers.
  std::vector<int64_t> encode(const std::string& text, bool bos) const;
  // Decoded, with invalid bytes replaced.
  std::string decode(const std::vector<int64_t>& ids) const;
};

}  // namespace lazy::serve
