#include "serve/openai/unsupported_fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

namespace lazy::serve {
using nlohmann::json;

namespace {

constexpr int kCompletions = static_cast<int>(Endpoint::completions), kChat = static_cast<int>(Endpoint::chat);
constexpr int kBoth = kCompletions | kChat;
constexpr std::string_view kAny = "";  // value of `accepted` for fields that are ignored

constexpr std::string_view kNoToolCalls = "this server does not generate tool calls";
constexpr std::string_view kUseMaxTokens = "use max_tokens", kUseLogprobs = "use logprobs";
constexpr std::string_view kUseChat = "use /v1/chat/completions", kUseRepetition = "use repetition_penalty";
constexpr std::string_view kUseEcho = "use echo with logprobs in /v1/completions";

// Returns whether the field describes tools and the request forbids their use (tool_choice or function_call is "none").
// Such requests are accepted, because clients send the tools again with each message of a conversation, even if the
// answer must be a text.
bool is_disabled_by_choice(Fields& fields, std::string_view name) {
  const char* selection = name == "tools" ? "tool_choice" : name == "functions" ? "function_call" : nullptr;
  const json* value = selection ? fields.find(selection) : nullptr;
  return value && *value == "none";
}

}  // namespace

// docs/guides/serve.md lists the same fields; a test compares both lists.
const std::vector<UnsupportedField>& unsupported_fields() {
  static const std::vector<UnsupportedField> all = {
      // Fields for tool calls
      {"tools", kBoth, "[[]]", kNoToolCalls},
      {"functions", kBoth, "[[]]", kNoToolCalls},
      {"tool_choice", kBoth, R"(["none", "auto"])", kNoToolCalls},
      {"function_call", kBoth, R"(["none", "auto"])", kNoToolCalls},
      {"parallel_tool_calls", kBoth, kAny},
      // Fields for structured output
      {"response_format", kBoth, R"([{"type": "text"}])"},
      {"structured_outputs", kBoth, "[{}]"},
      {"guided_json", kBoth, "[]"},
      {"guided_regex", kBoth, "[]"},
      {"guided_choice", kBoth, "[]"},
      {"guided_grammar", kBoth, "[]"},
      {"structural_tag", kBoth, "[]"},
      {"json_schema", kBoth, "[]"},
      {"grammar", kBoth, R"([""])"},
      {"regex", kBoth, "[]"},
      {"ebnf", kBoth, "[]"},
      {"guided_decoding_backend", kBoth, kAny},
      {"guided_whitespace_pattern", kBoth, kAny},
      // Fields of the prompt
      {"suffix", kBoth, R"([""])"},
      {"messages", kCompletions, "[]", kUseChat},
      {"prompt", kChat, "[]", "use messages"},
      {"prompt_embeds", kBoth, "[]"},
      {"chat_template", kBoth, "[]"},
      {"chat_template_kwargs", kCompletions, "[{}]", kUseChat},
      {"continue_final_message", kBoth, "[false]"},
      {"echo", kChat, "[false]"},
      {"add_special_tokens", kChat, "[false]"},
      {"truncate_prompt_tokens", kBoth, "[]"},
      {"truncation_side", kBoth, kAny},
      {"modalities", kBoth, R"([["text"]])"},
      {"audio", kBoth, "[]"},
      {"image_data", kBoth, "[[]]"},
      {"web_search_options", kBoth, "[]"},
      {"lora", kBoth, "[[]]"},
      // Fields that limit the length of the text or end it
      {"max_completion_tokens", kCompletions, "[]", kUseMaxTokens},
      {"max_new_tokens", kBoth, "[]", kUseMaxTokens},
      {"max_length", kBoth, "[]", kUseMaxTokens},
      {"n_predict", kBoth, "[]", kUseMaxTokens},
      {"min_tokens", kBoth, "[0]"},
      {"min_new_tokens", kBoth, "[0]"},
      {"min_length", kBoth, "[0]"},
      {"n_indent", kBoth, "[0]"},
      {"t_max_predict_ms", kBoth, "[0, -1]"},
      {"thinking_token_budget", kBoth, "[]"},
      {"include_stop_str_in_output", kBoth, "[false]"},
      {"no_stop_trim", kBoth, "[false]"},
      {"stop_regex", kBoth, "[]"},
      {"spaces_between_special_tokens", kBoth, "[true]"},
      {"n_keep", kBoth, kAny},
      {"n_discard", kBoth, kAny},
      // Fields for sampling
      {"do_sample", kBoth, "[true]", "use temperature 0 for greedy decoding"},
      {"num_beams", kBoth, "[1]"},
      {"use_beam_search", kBoth, "[false]"},
      {"length_penalty", kBoth, kAny},
      {"early_stopping", kBoth, kAny},
      {"repeat_penalty", kBoth, "[1]", kUseRepetition},
      {"repeat_last_n", kBoth, kAny},
      {"penalize_nl", kBoth, kAny},
      {"typical_p", kBoth, "[1]"},
      {"tfs_z", kBoth, "[1]"},
      {"top_a", kBoth, "[0]"},
      {"top_n_sigma", kBoth, "[-1, 0]"},
      {"min_keep", kBoth, "[0]"},
      {"mirostat", kBoth, "[0]"},
      {"mirostat_tau", kBoth, kAny},
      {"mirostat_eta", kBoth, kAny},
      {"dynatemp_range", kBoth, "[0]"},
      {"dynatemp_exponent", kBoth, kAny},
      {"xtc_probability", kBoth, "[0]"},
      {"xtc_threshold", kBoth, kAny},
      {"dry_multiplier", kBoth, "[0]"},
      {"dry_base", kBoth, kAny},
      {"dry_allowed_length", kBoth, kAny},
      {"dry_penalty_last_n", kBoth, kAny},
      {"dry_sequence_breakers", kBoth, kAny},
      {"samplers", kBoth, "[]"},
      {"no_repeat_ngram_size", kBoth, "[0]"},
      {"allowed_token_ids", kBoth, "[]"},
      {"bad_words", kBoth, "[[]]"},
      {"logits_processors", kBoth, "[[]]"},
      {"custom_logit_processor", kBoth, "[]"},
      {"vllm_xargs", kBoth, "[{}]"},
      // Fields that select the content of the response
      {"prompt_logprobs", kBoth, "[]", kUseEcho},
      {"top_logprobs", kCompletions, "[]", kUseLogprobs},
      {"n_probs", kBoth, "[0]", kUseLogprobs},
      {"post_sampling_probs", kBoth, "[false]"},
      {"return_tokens_as_token_ids", kBoth, "[false]", "use return_token_ids"},
      {"return_tokens", kBoth, "[false]", "use return_token_ids"},
      {"include_reasoning", kBoth, "[true]"},
      {"reasoning_format", kBoth, R"(["none", "auto"])"},
      {"verbosity", kBoth, R"(["medium"])"},
      {"return_progress", kBoth, "[false]"},
      {"response_fields", kBoth, kAny},
      {"timings_per_token", kBoth, kAny},
      // Fields for identification, scheduling and caching
      {"user", kBoth, kAny},
      {"metadata", kBoth, kAny},
      {"store", kBoth, kAny},
      {"service_tier", kBoth, kAny},
      {"safety_identifier", kBoth, kAny},
      {"prompt_cache_key", kBoth, kAny},
      {"prompt_cache_retention", kBoth, kAny},
      {"prediction", kBoth, kAny},
      {"priority", kBoth, kAny},
      {"request_id", kBoth, kAny},
      {"cache_salt", kBoth, kAny},
      {"cache_prompt", kBoth, kAny},
      {"id_slot", kBoth, kAny},
      {"n_cache_reuse", kBoth, kAny},
      {"t_max_prompt_ms", kBoth, kAny},
  };
  return all;
}

void refuse_unsupported_fields(Fields& fields, Endpoint endpoint) {
  for (const UnsupportedField& field : unsupported_fields()) {
    if ((field.endpoints & static_cast<int>(endpoint)) == 0) continue;
    const std::string name(field.name);
    const json* value = fields.find(name);
    if (!value || field.accepted == kAny) continue;
    const json accepted = json::parse(field.accepted);
    if (std::ranges::find(accepted, *value) != accepted.end() || is_disabled_by_choice(fields, name)) continue;
    std::vector<std::string> texts;  // the accepted values, except for empty ones, which equal a missing field
    for (const json& each : accepted) {
      if (!each.empty() && each != "") texts.push_back(each.dump());
    }
    refuse_field(name, fmt::format("{} is not supported: leave the field out{}{}{}", name,
                                   texts.empty() ? "" : fmt::format(" or send {}", fmt::join(texts, " or ")),
                                   field.advice.empty() ? "" : "; ", field.advice));
  }
}

}  // namespace lazy::serve
