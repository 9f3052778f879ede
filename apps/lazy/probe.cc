// `lazy probe MODEL_DIR --text FILE`: reports named activations of one forward pass as statistics or as complete
// tensors.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <memory>
#include <optional>

#include "command.h"
#include "common_options.h"
#include "core/error.h"
#include "core/file.h"
#include "core/stop.h"
#include "core/text.h"
#include "data/corpus/source.h"
#include "data/tokenizer.h"
#include "generate/model_folder.h"
#include "model/config.h"
#include "model/device.h"
#include "model/language_model.h"
#include "model_path.h"
#include "sinks/activations.h"

namespace {

struct ProbeArguments {
  std::string model, text, ids, output, json, dtype = "fp32", device = "auto";
  bool bos = false, no_bos = false, download = false;
  int64_t length = 0;
  lazy::sinks::ActivationOptions options;
};

std::vector<int64_t> ids_of_file(const std::string& path) {
  const std::string text = lazy::read_file(path);
  std::vector<int64_t> ids;
  for (const char *at = text.data(), *end = at + text.size(); at != end;) {
    if (std::isspace(static_cast<unsigned char>(*at))) {
      ++at;
      continue;
    }
    int64_t id = 0;
    const auto [rest, error] = std::from_chars(at, end, id);
    if (error != std::errc())
      lazy::fail("probe", "{}: expected token ids separated by spaces, found '{}' at byte {}", path,
                 lazy::to_valid_utf8(std::string(at, std::min(end, at + 12))), at - text.data());
    ids.push_back(id);
    at = rest;
  }
  return ids;
}

std::vector<int64_t> tokens_of(const ProbeArguments& a, const lazy::ModelConfig& config) {
  std::vector<int64_t> ids;
  if (!a.ids.empty()) {
    if (a.bos) lazy::fail("probe", "--bos requires --text; the ids of --ids are used unchanged");
    ids = ids_of_file(a.ids);
  } else {
    const auto tokenizer = lazy::load_tokenizer(a.model);
    lazy::check_tokenizer(config, tokenizer->fingerprint(), a.model);
    const auto encoded = tokenizer->encode(lazy::read_text(a.text));
    if (a.bos && !tokenizer->bos_id())
      lazy::fail("probe", "--bos: the {} tokenizer has no BOS token", tokenizer->kind());
    if (a.bos) {
      ids.push_back(*tokenizer->bos_id());
    } else if (!a.no_bos) {  // like transformers, insert the tokenizer's prefix (such as BOS)
      ids.insert(ids.end(), tokenizer->tokens().prefix.begin(), tokenizer->tokens().prefix.end());
    }
    ids.insert(ids.end(), encoded.begin(), encoded.end());
    lazy::check_embedding_rows(encoded, config, *tokenizer, "probe");
  }
  if (a.length > 0 && static_cast<int64_t>(ids.size()) > a.length) ids.resize(static_cast<size_t>(a.length));
  return ids;
}

void probe(ProbeArguments a) {
  if (a.text.empty() == a.ids.empty())
    lazy::fail("probe", "expected --text FILE or --ids FILE, found {}", a.text.empty() ? "neither" : "both");
  if (a.options.save.empty() != a.output.empty()) {
    lazy::fail("probe", "expected --save ACTIVATION together with --output FILE.safetensors, found {} alone",
               a.output.empty() ? "--save" : "--output");
  }
  a.model = lazy::cli::resolve_model_folder("probe", a.model, a.download);
  // Until at_once is reset before the results are written, a signal ends the process immediately.
  std::optional<lazy::StopEndsProcess> at_once("probe");
  auto model = lazy::LanguageModel::load(a.model);
  const std::vector<int64_t> ids = tokens_of(a, model.config());
  lazy::cli::warn_beyond_training("probe", a.model, model.config(), static_cast<int64_t>(ids.size()));
  lazy::set_placement(model, lazy::resolve_device(a.device), a.dtype);
  const auto found = lazy::sinks::read_activations(model, ids, a.options);
  at_once.reset();
  if (!a.output.empty()) lazy::sinks::save_tensors(a.output, found);
  nlohmann::ordered_json json{{"model", a.model}, {"dtype", a.dtype}, {"ids", ids}};
  json.update(lazy::sinks::to_json(found));
  const std::string dump = json.dump() + "\n";
  if (!a.json.empty() && a.json != "-") lazy::write_file_atomic(a.json, dump);
  if (a.json == "-") {
    fmt::print("{}", dump);
    return;
  }
  if (!a.output.empty()) fmt::print("{}", lazy::sinks::saved_table(a.output, found));
  // If only --save is given, the table of statistics is not printed, because it would hide the list of saved tensors.
  // --json includes the statistics.
  if (a.output.empty() || !a.options.read.empty()) fmt::print("{}", lazy::sinks::to_table(found));
}

}  // namespace

LAZY_COMMAND(probe, "Inspect the activations of one forward pass by name", [](CLI::App& command) {
  auto a = std::make_shared<ProbeArguments>();
  command.add_option("model", a->model, "Model folder, or run folder of `lazy train`")->required();
  lazy::cli::add_download_option(command, a->download);
  command.add_option("--text", a->text, "Text file, read as one sample");
  command.add_option("--ids", a->ids, "File of token ids separated by spaces, instead of --text");
  command.add_flag("--bos", a->bos, "Put BOS first (default with --text: if the tokenizer adds BOS)");
  command.add_flag("--no-bos", a->no_bos, "Do not add BOS");
  command.add_option("--length", a->length, "Maximum number of tokens (default: all)")->check(lazy::cli::kPositive);
  lazy::cli::add_repeated_option(
      command, "--read", a->options.read,
      "Activation to measure; * and ? are wildcards (may be repeated; default: all except scores and "
      "weights)");
  lazy::cli::add_repeated_option(command, "--save", a->options.save,
                                 "Activation to write to --output as a tensor (may be repeated)");
  command.add_option("--output", a->output, "The .safetensors file for --save");
  lazy::cli::add_interventions(command);
  command.add_option("--device", a->device, "Device to compute on")
      ->check(lazy::cli::one_of({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  command.add_option("--dtype", a->dtype, "Computing precision")
      ->check(lazy::cli::one_of({"fp32", "bf16"}))
      ->capture_default_str();
  command.add_option("--json", a->json, "Write all results to this JSON file (- for standard output)");
  command.footer(R"(
Examples:
  lazy probe runs/lazy/model --text sentence.txt --bos
  lazy probe gpt2 --text sentence.txt --read 'layers.*.residual' --json -
  lazy probe gpt2 --text sentence.txt --save 'layers.3.attention.weights' --output weights.safetensors
  lazy probe gpt2 --text sentence.txt --set-zero 'embedding.tokens[0]'

docs/guides/sinks.md lists the names. Statistics are streamed: a tensor is reduced as soon as it is computed.)");
  command.callback([a, &command] {
    lazy::install_stop_handlers();
    a->options.interventions = lazy::cli::given_interventions(command);
    probe(*a);
  });
});
