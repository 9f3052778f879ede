// `lazy generate`: text from a model folder, printed as it appears.
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "command.h"
#include "common_options.h"

#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/stop.h"
#include "generate/generator.h"
#include "generate/model_folder.h"

namespace lazy {
namespace {

struct GenerateArguments {
  std::string model, json, prompt_file, dtype = "fp32";
  std::vector<std::string> prompts;
  GenerateOptions generate;
  ModelOptions model_options;
  int64_t samples = 1;
  bool no_bos = false;
};

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (std::fflush(stdout) != 0) fail_run("generate", "standard output could not be written");
}

void run(GenerateArguments options) {
  if (!options.prompt_file.empty()) options.prompts.push_back(read_file(options.prompt_file));
  if (options.prompts.empty()) options.prompts.emplace_back();
  options.generate.sampling.validate();
  const auto streaming = options.model_options.streaming();
  install_stop_handlers();
  ModelFolder folder = load_model_folder(options.model, options.model_options);
  if (options.dtype == "bf16") folder.model.set_compute_dtype(at::kBFloat16);
  if (folder.model.config().eos_token_id >= 0)
    options.generate.stop_tokens.push_back(folder.model.config().eos_token_id);
  if (folder.tokenizer->eos_id()) options.generate.stop_tokens.push_back(*folder.tokenizer->eos_id());

  Generator generator(folder.model, streaming);
  const uint64_t seed = options.generate.sampling.seed;
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  bool first = true;
  for (const std::string& prompt : options.prompts) {
    const std::vector<int64_t> ids = encode_prompt(*folder.tokenizer, prompt, !options.no_bos);
    generator.set_prompt(ids);
    if (!streaming &&
        static_cast<int64_t>(ids.size()) + options.generate.max_tokens > folder.model.config().max_length) {
      log::debug("the text may pass the model's training length of {} tokens", folder.model.config().max_length);
    }
    for (int64_t sample = 0; sample < options.samples && !stop_requested(); ++sample) {
      print(first ? prompt : "\n\n---\n\n" + prompt);
      first = false;
      options.generate.sampling.seed = seed + static_cast<uint64_t>(sample);
      TextStream stream(*folder.tokenizer);
      std::string text;
      const Generation generation = generator.run(options.generate, [&](int64_t token) {
        const std::string piece = stream.push(token);
        text += piece;
        print(piece);
        return !stop_requested();
      });
      const std::string rest = stream.finish();
      text += rest;
      print(rest);
      results.push_back({{"prompt", prompt},
                         {"text", text},
                         {"tokens", generation.tokens.size()},
                         {"finish_reason", generation.finish_reason},
                         {"seed", options.generate.sampling.seed}});
    }
  }
  print("\n");
  if (!options.json.empty()) {
    write_file_atomic(options.json, results.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  }
}

}  // namespace

LAZY_COMMAND(generate, "Continue a text with a model", [](cli::Command command) {
  auto o = std::make_shared<GenerateArguments>();
  o->generate.sampling = {.temperature = 0.8, .top_p = 0.95, .seed = 42};
  SamplingOptions& sampling = o->generate.sampling;
  command.add_option("model", o->model, "Model folder: config.json, model.safetensors and its tokenizer").required();
  command.add_option("--prompt", o->prompts, "Text to continue; may be given several times").repeatable();
  command.add_option("--prompt-file", o->prompt_file, "File with a text to continue");
  command.add_option("--max-tokens", o->generate.max_tokens, "Tokens a text, at most").show_default().non_negative();
  command.add_option("--temperature", sampling.temperature, "0: greedy").show_default();
  command.add_option("--top-k", sampling.top_k, "Sample among the k most likely tokens; 0: all").show_default();
  command.add_option("--top-p", sampling.top_p, "Sample among the most likely tokens with this probability")
      .show_default();
  command.add_option("--repetition-penalty", sampling.repetition_penalty, "Above 1: penalize tokens that have occurred")
      .show_default();
  command.add_option("--seed", sampling.seed, "The same seed gives the same text; sample n uses seed + n")
      .show_default();
  command.add_option("--samples", o->samples, "Texts a prompt").show_default().positive();
  command.add_option("--dtype", o->dtype, "Precision of the computation").show_default().one_of({"fp32", "bf16"});
  cli::add_model_options(command, o->model_options);
  command.add_flag("--no-bos", o->no_bos, "Do not begin with the BOS token");
  command.add_option("--json", o->json, "Also write [{prompt, text, ...}] to this file");
  command.footer(
      "Examples:\n"
      "  lazy generate run/model --prompt 'Once upon a time'\n"
      "  lazy generate run/model --prompt 'The' --temperature 0 --max-tokens 40\n"
      "  lazy generate run/model --prompt 'A' --prompt 'B' --samples 3 --json samples.json\n"
      "  lazy generate run/model --prompt 'Chapter 1' --max-tokens 20000 --cache streaming:4+508");
  command.callback([o] { run(*o); });
});

}  // namespace lazy
