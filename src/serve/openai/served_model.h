// A model that the HTTP API offers: its name, tokenizer, engine and chat template.
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

// Reads the chat template of a model folder from chat_template.jinja, or else from chat_template in
// tokenizer_config.json. If that field has several templates, the one named "default" is used. Returns "" if the
// folder does not have a template. Throws Error "OPERATION: ..." that names the file and the field.
std::string read_chat_template(const std::filesystem::path& folder, const char* operation = "serve");

// Variables that all templates can use: the texts of the special tokens that are defined.
nlohmann::ordered_json template_variables(const TokenTable& tokens);

int64_t longest_piece_of(const Tokenizer& tokenizer);

// Returns a matcher for those special tokens that the tokenizer itself would encode as plain text.
AddedTokenMatcher special_tokens_of(const Tokenizer& tokenizer);

struct ServedModel {
  std::string id;
  std::shared_ptr<const Tokenizer> tokenizer;
  GenerationService* engine = nullptr;  // must outlive the server and the requests
  // Must outlive the server and the requests; null: the model has no attention weights.
  AttentionService* attention = nullptr;
  std::string chat_template;           // source of the template; empty if the folder has none
  std::shared_ptr<ChatTemplate> chat;  // null if the template is missing or unusable
  std::string chat_problem;            // why the template is unusable; empty if the template is usable or missing
  std::vector<int64_t> stop_tokens;    // EOS tokens, which end every text
  int64_t vocab_size = 0;              // vocabulary of the model; may exceed the tokenizer's vocabulary
  int64_t created = 0;                 // Unix time in seconds
  int64_t longest_piece = 0;           // maximum bytes per token; 0: unknown
  AddedTokenMatcher special_tokens = AddedTokenMatcher({});  // result of special_tokens_of()
  std::shared_ptr<ModelMetrics> metrics = std::make_shared<ModelMetrics>();

  // Returns true if the text certainly has more than `tokens` tokens. The function does not encode the text.
  bool surely_longer(const std::string& text, int64_t tokens) const;
  // Encodes a text. add_special_tokens: add the tokens that transformers puts before and after a text
  // (TokenTable::prefix and suffix), but do not repeat them if the text already begins with them. Special tokens in the
  // text are replaced by their ids for every kind of tokenizer, as in transformers.
  std::vector<int64_t> encode(const std::string& text, bool add_special_tokens) const;
  // Encodes the prompt that `chat` renders; `chat` must be set. See ChatTemplate::render.
  std::vector<int64_t> encode_chat(const nlohmann::ordered_json& messages,
                                   const nlohmann::ordered_json& variables) const;
  // Decodes ids to text and replaces invalid UTF-8 by U+FFFD.
  std::string decode(const std::vector<int64_t>& ids) const;
};

}  // namespace lazy::serve
