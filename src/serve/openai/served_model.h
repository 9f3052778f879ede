// A model as the protocol sees it: its name, its tokenizer, its engine.
#pragma once
#include <cstdint>
#include <filesystem>
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

// The chat template of a model folder: chat_template.jinja, else chat_template of tokenizer_config.json (of several,
// the one named "default"). Empty if there is none. Throws Error "OPERATION: ..." naming file and field.
std::string read_chat_template(const std::filesystem::path& folder, const char* operation = "serve");

// What templates see: the texts of the special tokens that are set.
nlohmann::ordered_json template_variables(const TokenTable& tokens);

int64_t longest_piece_of(const Tokenizer& tokenizer);

// Finds in a text the special tokens that the tokenizer itself would encode as letters.
AddedTokenMatcher special_tokens_of(const Tokenizer& tokenizer);

struct ServedModel {
  std::string id;
  std::shared_ptr<const Tokenizer> tokenizer;
  GenerationService* engine = nullptr;    // outlives the server and the requests
  AttentionService* attention = nullptr;  // the same; null: no weights to show
  std::string chat_template;              // its source; empty: none
  std::shared_ptr<ChatTemplate> chat;     // null without a usable template
  std::string chat_problem;               // why the folder's template is not usable; empty: it has none
  std::vector<int64_t> stop_tokens;       // end every text: EOS
  int64_t vocab_size = 0;                 // of the model, which may have more rows than the tokenizer has tokens
  int64_t created = 0;                    // seconds since 1970
  int64_t longest_piece = 0;              // bytes of a token at most; 0: not known
  AddedTokenMatcher special_tokens = AddedTokenMatcher({});  // special_tokens_of()
  std::shared_ptr<ModelMetrics> metrics = std::make_shared<ModelMetrics>();

  // The text has more tokens than `tokens`, whatever they are: found without encoding it.
  bool surely_longer(const std::string& text, int64_t tokens) const;
  // Ids of a text. `add_special_tokens`: with what transformers puts before and after it (TokenTable::prefix, suffix);
  // a text that itself begins with these tokens has them once. Special tokens in the text become their ids for every
  // kind of tokenizer, as with transformers.
  std::vector<int64_t> encode(const std::string& text, bool add_special_tokens) const;
  // Ids of the prompt that `chat`, which is set, renders; see ChatTemplate::render.
  std::vector<int64_t> encode_chat(const nlohmann::ordered_json& messages,
                                   const nlohmann::ordered_json& variables) const;
  // Decoded, with invalid bytes replaced.
  std::string decode(const std::vector<int64_t>& ids) const;
};

}  // namespace lazy::serve
