// `lazy sinks MODEL_DIR --text FILE`: attention sink statistics per layer and head.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <memory>
#include <optional>

#include "command.h"
#include "common_options.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/stop.h"
#include "data/corpus/source.h"
#include "generate/model_folder.h"
#include "model/config.h"
#include "model/device.h"
#include "model/language_model.h"
#include "model_path.h"
#include "report_page.h"
#include "sinks/analysis.h"

namespace {
namespace fs = std::filesystem;

struct SinksArguments {
  std::string model, text, corpus, split = "validation", json, report, dtype = "fp32", device = "auto";
  bool by_layers = false, no_bos = false, download = false;
  uint64_t memory = 0;  // if the weights need more bytes than this, layers are loaded one at a time; 0: no limit
  std::string command;  // command line, which is stored in the results
  lazy::sinks::AnalysisOptions options;
};

lazy::LanguageModel opened(const SinksArguments& a) {
  const std::string device = lazy::resolve_device(a.device);
  // Bytes per parameter: fp32 master weights, plus the bf16 copy that matrix products read.
  const uint64_t bytes = (a.dtype == "bf16" ? 6 : 4) *
                         static_cast<uint64_t>(count_parameters(lazy::ModelConfig::from_directory(a.model)).total);
  if (a.by_layers || (a.memory > 0 && bytes > a.memory)) return lazy::load_offloaded_model(a.model, device, a.dtype);
  auto model = lazy::LanguageModel::load(a.model);
  lazy::set_placement(model, device, a.dtype);
  return model;
}

void measure(SinksArguments a) {
  for (const std::string* file : {&a.json, &a.report}) {
    if (!file->empty() && *file != "-" && fs::is_directory(*file))
      lazy::fail("sinks", "{}: expected a file's name, found a folder", *file);
  }
  if (a.text.empty() == a.corpus.empty()) {
    lazy::fail("sinks", "expected --text FILE or --corpus CORPUS_DIR, found {}", a.text.empty() ? "neither" : "both");
  }
  a.model = lazy::cli::resolve_model_folder("sinks", a.model, a.download);
  if (a.options.length > 0)
    lazy::cli::warn_beyond_training("sinks", a.model, lazy::ModelConfig::from_directory(a.model), a.options.length);
  // Until at_once is reset before the results are written, a signal ends the process immediately.
  std::optional<lazy::StopEndsProcess> at_once("sinks");
  const auto tokenizer = lazy::load_tokenizer(a.model);
  const auto& prefix = tokenizer->tokens().prefix;
  if (a.corpus.empty() && !a.no_bos && !prefix.empty() && prefix.front() == tokenizer->bos_id()) a.options.bos = true;
  const auto source = a.corpus.empty() ? lazy::sinks::text_source(*tokenizer, lazy::read_text(a.text), a.text)
                                       : lazy::sinks::corpus_source(*tokenizer, a.corpus, a.split);
  lazy::log::info("sinks: loading {}", a.model);
  auto model = opened(a);  // loading can take a minute, so errors in the text are reported first
  const lazy::ModelConfig& config = model.config();
  lazy::check_tokenizer(config, tokenizer->fingerprint(), a.model);
  lazy::check_embedding_rows(source.ids, config, *tokenizer, "sinks");
  const auto study = lazy::sinks::analyze(model, *tokenizer, source, a.options);
  at_once.reset();
  const auto json = lazy::sinks::to_json(study, config, a.model, source.name, a.options, a.command);
  const std::string dump = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (!a.json.empty() && a.json != "-") lazy::write_file_atomic(a.json, dump);
  fmt::print("{}", a.json == "-" ? dump : lazy::sinks::to_table(study));
  if (!a.report.empty()) lazy::cli::write_result_page("sinks", dump, a.report, a.command);
}

}  // namespace

LAZY_COMMAND(
    sinks, "Measure attention sinks: density, sink ratio, released mass, alive fraction", [](CLI::App& command) {
      auto a = std::make_shared<SinksArguments>();
      command.add_option("model", a->model, "Model folder, or run folder of `lazy train`")->required();
      lazy::cli::add_download_option(command, a->download);
      command.add_option("--text", a->text, "Text file to measure on");
      command.add_option("--corpus", a->corpus, "Corpus of `lazy data prepare` to measure on, instead of --text");
      command.add_option("--split", a->split, "Split of --corpus")->capture_default_str();
      command
          .add_option("--length", a->options.length,
                      "Tokens per sample (default: the model's training length, at most 2048)")
          ->check(CLI::Range(2, 1 << 24));
      command
          .add_option("--samples", a->options.samples,
                      "Maximum number of samples of --length tokens, spread over the text. Sink_1^0.3 is measured on "
                      "other samples (--sink-samples)")
          ->check(lazy::cli::kPositive)
          ->capture_default_str();
      command
          .add_option(
              "--sink-samples", a->options.sink_samples,
              "Maximum number of samples of 64 tokens for Sink_1^0.3 and for --measures weights and vectors; 0: "
              "do not measure Sink_1^0.3")
          ->check(CLI::Range(0, 1 << 24))
          ->capture_default_str();
      command.add_flag("--bos", a->options.bos,
                       "Put BOS first in every sample (default with --text: if the tokenizer adds BOS)");
      command.add_flag("--no-bos", a->no_bos, "Do not add BOS");
      command
          .add_option("--maps", a->options.maps,
                      "Attention maps: auto, all, none, LAYER:HEAD,... (counted from 0), or a sinks.json that names "
                      "the heads")
          ->capture_default_str();
      command.add_option("--map-text", a->options.map_text,
                         "Text of the attention maps (default: the first paragraph of the text)");
      command.add_option("--map-tokens", a->options.map_tokens, "Maximum number of tokens in the attention maps")
          ->check(CLI::Range(2, 64))
          ->capture_default_str();
      command
          .add_option("--measures", a->options.measures,
                      "Additional measures: weights, vectors, massive, collapse, outliers, decode, or all")
          ->delimiter(',');
      lazy::cli::add_interventions(command);
      command.add_option("--device", a->device, "Device to compute on")
          ->check(lazy::cli::one_of({"auto", "cpu", "cuda"}))
          ->capture_default_str();
      command.add_option("--dtype", a->dtype, "Computing precision")
          ->check(lazy::cli::one_of({"fp32", "bf16"}))
          ->capture_default_str();
      command.add_flag("--layer-at-a-time", a->by_layers,
                       "Load each layer's weights only while it computes, for models larger than the memory");
      command
          .add_option(
              "--memory", a->memory,
              "Memory limit, such as 4GiB: if the weights need more, layers are loaded as with --layer-at-a-time")
          ->transform(CLI::AsSizeValue(false));
      command.add_option("--json", a->json, "Write all results to this JSON file (- for standard output)");
      command.add_option("--report", a->report, "Write an HTML page with figures to this file");
      command.footer(R"(
Examples:
  lazy sinks runs/lazy/model --text book.txt
  lazy sinks runs/lazy/model --text book.txt --json runs/lazy/sinks.json --report sinks.html
  lazy sinks runs/lazy/model --text book.txt --length 32768 --samples 1 --maps 1:2,4:1
  lazy sinks Llama-2-7b --text book.txt --memory 4GiB --dtype bf16
  lazy sinks gpt2 --text book.txt --bos --set-zero 'layers.*.attention.q.projected' --measures all
  lazy sinks gpt2 --text book.txt --bos --add 'layers.1.residual[0]=epe[1] - epe[0]'

Sink ratio: mean weight on the first key. Density: on the other keys. Released mass: 1 - both. Alive fraction: share of
visible pairs whose weight is above zero. Sink_1^0.3: share of heads whose first key gets more than 0.3 on average, over
--sink-samples samples of 64 tokens. Memory grows with the length, never with its square.)");
      command.callback([a, &command] {
        lazy::install_stop_handlers();
        a->options.interventions = lazy::cli::given_interventions(command);
        a->command = lazy::cli::command_line(command);
        if (a->options.measures == std::vector<std::string>{"all"}) a->options.measures = lazy::sinks::kFurtherMeasures;
        measure(*a);
      });
    });
