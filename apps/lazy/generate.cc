// `lazy generate`: continues texts with a model and prints them while they are generated.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "command.h"
#include "common_options.h"
#include "model_path.h"
#include "print_text.h"

#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/stop.h"
#include "data/corpus/source.h"
#include "generate/model_folder.h"
#include "generate/output_text.h"
#include "model/context_length.h"
#include "model/device.h"
#include "model/paging.h"
#include "serve/engine.h"
#include "serve/token_queue.h"

namespace lazy {
namespace {

struct GenerateArguments {
  std::string model, json, device = "auto", dtype = "auto";
  std::vector<std::string> prompts, prompt_files;
  SamplingOptions sampling = cli::kDefaultSampling;
  int64_t max_tokens = 128;
  double cache_gib = 8;
  ModelOptions model_options;
  int64_t samples = 1;
  bool no_bos = false, special_tokens = false, ignore_eos = false, download = false;
};

struct Text {
  std::string prompt;
  uint64_t seed;
  Engine::Id id;
  std::shared_ptr<TokenQueue> tokens;
};

// Returns the prompts of the command line, or standard input as the only prompt if the command line has none. As in
// llama.cpp, one newline at the end of standard input is removed, because `echo` adds it.
std::vector<std::string> read_prompts(const GenerateArguments& arguments) {
  std::vector<std::string> prompts = arguments.prompts;
  for (const std::string& file : arguments.prompt_files) prompts.push_back(read_text(file));
  if (!prompts.empty()) return prompts;
  std::string text = ::isatty(STDIN_FILENO) != 0 ? "" : read_text("-");
  if (text.ends_with('\n')) text.pop_back();
  if (text.empty()) {
    fail(
        "generate",
        "expected --prompt TEXT, --prompt-file FILE or a text on standard input, found none; `--prompt \"\"` generates "
        "without a prompt");
  }
  return {std::move(text)};
}

// Sizes the cache so that all texts are generated at the same time, up to --cache-gib; further texts wait until memory
// is free.
EngineOptions engine_options(const LanguageModel& model, const GenerateArguments& arguments,
                             const std::vector<std::vector<int64_t>>& prompts) {
  constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();
  const auto max_cache = static_cast<int64_t>(arguments.cache_gib * (1 << 30));
  EngineOptions options{.cache_bytes = max_cache, .max_waiting = kUnlimited};
  options.streaming = arguments.model_options.streaming();
  const auto tokens_of = [&](const auto& prompt) { return static_cast<int64_t>(prompt.size()) + arguments.max_tokens; };
  // max_model_len is the length of the longest text, even if this exceeds the training length
  for (const auto& prompt : prompts) options.max_model_len = std::max(options.max_model_len, tokens_of(prompt));
  if (!options.streaming && paged_unsupported_reason(model.config(), options.max_model_len).empty()) {
    int64_t pages = 1;
    for (const auto& prompt : prompts) {
      const int64_t tokens = tokens_of(prompt);
      pages += arguments.samples * ((tokens + options.page_tokens - 1) / options.page_tokens);
    }
    const int64_t page = page_bytes(model.config(), options.page_tokens, model.compute_dtype());
    options.cache_bytes = std::min(pages, std::max<int64_t>(max_cache / page, 1)) * page;
  }
  return options;
}

// Adds times for a batch of a single text: the time to the first token and the median time between two tokens.
void add_times(nlohmann::ordered_json& result, const std::vector<double>& seconds) {
  if (seconds.empty()) return;
  result["first_token_seconds"] = seconds.front();
  std::vector<double> gaps(seconds.size());
  std::adjacent_difference(seconds.begin(), seconds.end(), gaps.begin());
  gaps.erase(gaps.begin());
  if (gaps.empty()) return;
  const auto middle = gaps.begin() + static_cast<std::ptrdiff_t>(gaps.size() / 2);
  std::nth_element(gaps.begin(), middle, gaps.end());
  result["seconds_per_token"] = *middle;
}

void run(GenerateArguments options) {
  options.sampling.validate("generate");
  const std::string device = resolve_device(options.device);
  options.model = cli::resolve_model_folder("generate", options.model, options.download);
  options.prompts = read_prompts(options);
  install_stop_handlers();  // not earlier: an interrupt must be able to end the program while it reads standard input
  ModelFolder folder = load_model_folder(options.model, options.model_options);
  const ModelConfig& config = folder.model.config();
  cli::place_model(folder.model, device, resolve_dtype(options.dtype, device));
  const std::vector<int64_t> stop_tokens =
      options.ignore_eos ? std::vector<int64_t>() : end_tokens(options.model, config, *folder.tokenizer);

  std::vector<std::vector<int64_t>> prompts;
  int64_t longest = 0;  // maximum number of tokens of a prompt and its generated text
  for (const std::string& prompt : options.prompts) {
    prompts.push_back(encode_prompt(*folder.tokenizer, prompt, !options.no_bos));
    if (prompts.back().empty() && !options.no_bos && folder.tokenizer->bos_id()) {
      prompts.back().push_back(*folder.tokenizer->bos_id());
    }
    if (prompts.back().empty())
      fail("generate", "the prompt is empty and the tokenizer has no BOS token to begin with");
    const std::vector<int32_t> ids(prompts.back().begin(), prompts.back().end());
    check_embedding_rows(ids, config, *folder.tokenizer, "generate");
    longest = std::max(longest, static_cast<int64_t>(prompts.back().size()) + options.max_tokens);
  }
  end_if_stopped("generate");
  Engine engine(folder.model, engine_options(folder.model, options, prompts));
  std::vector<Text> texts;
  for (size_t n = 0; n < prompts.size(); ++n) {
    for (int64_t sample = 0; sample < options.samples; ++sample) {
      GenerationRequest request{.prompt = prompts[n],
                                .sampling = options.sampling,
                                .max_tokens = options.max_tokens,
                                .stop_tokens = stop_tokens};
      request.sampling.seed += static_cast<uint64_t>(sample);
      Text text{options.prompts[n], request.sampling.seed, 0, std::make_shared<TokenQueue>()};
      const Engine::Submission submission = engine.submit(std::move(request), text.tokens);
      if (submission.refusal != Engine::Refusal::none) fail("generate", "{}", submission.message);
      text.id = submission.id;
      texts.push_back(std::move(text));
    }
  }
  if (const int64_t context = context_length(config); !options.model_options.streaming() && longest > context) {
    log::warn("a text may reach {} tokens; the model's context length is {}, and longer texts are often incoherent",
              longest, context);
  }

  // Prints the texts in order, although all are generated at the same time. The first text is printed while it is
  // generated. Of each following text, the tokens that already exist are printed first.
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (size_t n = 0; n < texts.size() && !stop_requested(); ++n) {
    Text& text = texts[n];
    cli::print("generate", n == 0 ? text.prompt : "\n\n---\n\n" + text.prompt);
    OutputText output(*folder.tokenizer, {}, !options.special_tokens,
                      prompts[n / static_cast<size_t>(options.samples)]);
    const cli::PrintedText written = cli::print_text("generate", engine, text.id, *text.tokens, *folder.tokenizer,
                                                     std::move(output), stop_requested);
    if (written.reason == FinishReason::cancelled) break;
    results.push_back({{"prompt", text.prompt},
                       {"prompt_tokens", prompts[n / static_cast<size_t>(options.samples)].size()},
                       {"text", written.text},
                       {"tokens", written.tokens},
                       {"finish_reason", written.reason == FinishReason::length ? "length" : "stop"},
                       {"seed", text.seed}});
    if (texts.size() == 1) add_times(results.back(), written.seconds);
  }
  cli::print("generate", "\n");
  if (results.size() < texts.size()) {
    end_if_stopped("generate", options.json.empty()
                                   ? "the text is incomplete"
                                   : "the text is incomplete, and " + options.json + " was not written");
  }
  if (!options.json.empty()) {
    write_file_atomic(options.json, results.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  }
}

}  // namespace

LAZY_COMMAND(generate, "Continue a text with a model", [](CLI::App& command) {
  auto o = std::make_shared<GenerateArguments>();
  command.add_option("model", o->model, "Model folder, or run folder of `lazy train`")->required();
  cli::add_download_option(command, o->download);
  cli::add_repeated_option(
      command, "--prompt", o->prompts,
      "Text to continue; may be repeated (all texts are generated in one batch). Without --prompt and "
      "--prompt-file, standard input is the text");
  cli::add_repeated_option(command, "--prompt-file", o->prompt_files, "File with a text to continue; may be repeated");
  command.add_option("--max-tokens", o->max_tokens, "Maximum number of new tokens per text")
      ->capture_default_str()
      ->check(cli::kNonNegative);
  command
      .add_option("--cache-gib", o->cache_gib,
                  "Maximum GiB of memory for keys, values and states (KV cache); texts that do not fit wait until "
                  "memory is free")
      ->capture_default_str()
      ->check(CLI::Range(0.001, 1e6));
  cli::add_sampling_options(command, o->sampling, "sample n uses seed + n");
  command.add_option("--samples", o->samples, "Texts per prompt")->capture_default_str()->check(cli::kPositive);
  cli::add_placement_options(command, o->device, o->dtype);
  cli::add_model_options(command, o->model_options);
  command.add_flag("--no-bos", o->no_bos,
                   "Do not add the special tokens, such as BOS, that the tokenizer adds to a text");
  command.add_flag("--special-tokens", o->special_tokens, "Print special tokens, such as </s>, as well");
  command.add_flag("--ignore-eos", o->ignore_eos, "Do not stop at the end-of-text token");
  command.add_option(
      "--json", o->json,
      "Also write [{prompt, text, seconds, ...}] to this file: seconds until the text ended; for a single "
      "text also the time per token");
  command.footer(
      "Examples:\n"
      "  lazy generate runs/lazy --prompt 'Once upon a time'\n"
      "  lazy generate runs/lazy --prompt 'The' --temperature 0 --max-tokens 40\n"
      "  lazy generate runs/lazy --prompt 'A' --prompt 'B' --samples 3 --json samples.json\n"
      "  echo 'Once upon a time' | lazy generate runs/lazy\n"
      "  lazy generate runs/lazy --prompt 'Chapter 1' --max-tokens 20000 --cache streaming:4+508");
  command.callback([o] { run(*o); });
});

}  // namespace lazy
