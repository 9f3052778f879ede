#include "eval.h"

#include <fmt/format.h>

#include <memory>

#include "common_options.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/stop.h"
#include "model/config.h"
#include "model/device.h"
#include "report_page.h"

namespace lazy::cli {
namespace {
namespace length = lazy::eval::length;
using lazy::eval::ScoreOptions;

// Returns the label of a model, for example "lazy" for runs/lazy/model. The name of a run folder is used because the
// model folder in it is always called "model".
std::string model_label(const std::string& path) {
  const auto folder = std::filesystem::weakly_canonical(path);
  return folder.filename() == "model" && folder.has_parent_path() ? folder.parent_path().filename().string()
                                                                  : folder.filename().string();
}

length::LoadedModel load_variant(const std::string& path, const ModelOptions& options, const EvalArguments& a,
                                 const EvalMachine& machine) {
  ScoreOptions how = machine.score;
  how.cache = options.streaming();
  auto model = std::make_shared<LanguageModel>(open_model(path, options));
  move_to_machine(*model, machine, a.dtype);
  const std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer(path);
  check_tokenizer(model->config(), tokenizer->fingerprint(), path);
  return {eval::make_scorer(model, how, true), tokenizer, model->config(), device_name(*model)};
}

std::vector<length::ModelVariant> model_variants(const LengthArguments& lengths, const EvalArguments& a,
                                                 const EvalMachine& machine) {
  std::vector<std::string> variants = {""};  // the empty variant is the unchanged model
  variants.insert(variants.end(), lengths.variants.begin(), lengths.variants.end());
  std::vector<std::string> labels;
  for (const std::string& path : a.models) {
    std::string label = model_label(path);
    for (const std::string& other : a.models) {
      if (&other != &path && model_label(other) == label) label = path;
    }
    labels.push_back(label);
  }
  std::vector<length::ModelVariant> all;
  for (size_t m = 0; m < a.models.size(); ++m) {
    for (const std::string& variant : variants) {
      const std::string& path = a.models[m];
      const ModelOptions options = length::parse_variant(variant, a.model_options);
      // throws an Error for an invalid variant before the evaluation starts
      options.apply(ModelConfig::from_directory(path));
      options.streaming();
      all.push_back({variant.empty() ? labels[m] : labels[m] + " " + variant, path, variant,
                     [=, &a, &machine] { return load_variant(path, options, a, machine); }});
    }
  }
  return all;
}

}  // namespace

void add_length_options(CLI::App& command, LengthArguments& a) {
  const char* group = "Lengths (docs/guides/length.md)";
  length::LengthEvalOptions& o = a.options;
  command.add_option("--lengths", o.lengths, "Measure at these context lengths: 512,1024,...")
      ->delimiter(',')
      ->group(group);
  command
      .add_option("--variant", a.variants,
                  "Also measure with rope-base=X, positions=yarn:4 or cache=streaming:4+508 (separated by commas); "
                  "repeatable")
      ->group(group);
  command
      .add_flag("--per-document", o.per_document,
                "End windows at the end of a document (default: concatenate the documents)")
      ->group(group);
  command.add_option("--stride", o.stride, "Stride of sliding windows in tokens")->check(kPositive)->group(group);
  command
      .add_option("--depths", a.depths,
                  "Positions of the answer in synthetic tasks, in percent of the context (default: 0,25,50,75,100)")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 100.0))
      ->group(group);
  command
      .add_option("--probe-samples", o.synthetic.samples, "Synthetic tasks: number of contexts per length and depth")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str()
      ->group(group);
  command.add_option("--pairs", o.synthetic.pairs, "Key-value pairs of the task recall")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str()
      ->group(group);
  command.add_option("--seed", o.synthetic.seed, "Seed of the synthetic tasks and of the confidence intervals")
      ->capture_default_str()
      ->group(group);
  command.add_option("--resamples", o.resamples, "Resamples of the bootstrap")
      ->check(CLI::Range(100, 1000000))
      ->capture_default_str()
      ->group(group);
  command.add_option("--report", a.report, "Write an HTML page with curves to this file")->group(group);
}

void evaluate_lengths(LengthArguments lengths, const EvalArguments& a, const EvalMachine& machine) {
  for (const std::string& file : {a.output, lengths.report}) {
    if (std::filesystem::is_directory(file)) fail("eval", "{}: expected a file's name, found a folder", file);
  }
  length::LengthEvalOptions& options = lengths.options;
  options.tasks = a.tasks;
  options.data = a.data;
  options.corpus = a.corpus;
  options.split = a.split;
  options.text = a.text;
  options.bos = a.bos || a.bos_every_window;
  if (a.limit > 0) options.limit = a.limit;
  if (!lengths.depths.empty()) options.synthetic.depths.clear();
  for (const double percent : lengths.depths) options.synthetic.depths.push_back(percent / 100);
  options.date = today();
  options.command = a.command;
  for (const std::string& model : a.models) {
    const ModelConfig config = ModelConfig::from_directory(model);
    if (machine.first && !options.bos && !a.no_bos) hint_at_bos(config, model);
    if (machine.first) warn_beyond_training("eval", model, config, options.lengths.back());
  }
  const std::filesystem::path partial = std::filesystem::path(a.output).replace_extension(".partial.json");
  length::Json results;
  const auto json = [&] { return results.dump(2, ' ', false, length::Json::error_handler_t::replace) + "\n"; };
  const auto print = [&] {
    if (machine.first && !results.empty()) fmt::print("{}", a.json ? json() : length::to_table(results));
  };
  options.on_length = [&](const length::Json& unfinished) {
    results = unfinished;
    if (machine.first && !a.output.empty()) write_file_atomic(partial, json());
  };
  try {
    results = length::evaluate_lengths(model_variants(lengths, a, machine), options);
  } catch (const Interrupted& error) {
    print();
    const std::string finished = results.empty()    ? "; no length was finished"
                                 : a.output.empty() ? ""
                                                    : "; the finished lengths are in " + partial.string();
    throw Interrupted(error.what() + finished, stop_signal());
  }
  if (machine.first && !a.output.empty()) {
    write_file_atomic(a.output, json());
    std::error_code ignored;
    std::filesystem::remove(partial, ignored);
    log::info("eval: the results are in {}", a.output);
  }
  print();
  if (machine.first && !lengths.report.empty()) write_result_page("eval", json(), lengths.report, a.command);
}

}  // namespace lazy::cli
