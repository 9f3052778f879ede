#include "eval_length.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <memory>

#include "core/clock.h"
#include "core/error.h"
#include "core/file.h"
#include "eval/length/variant.h"
#include "model/tokenizer_match.h"
#include "report/length_page.h"

namespace lazy::cli {
namespace {
namespace length = lazy::eval::length;
using lazy::eval::ScoreOptions;

// runs/lazy/model -> lazy: the folder is "model" in every run.
std::string model_label(const std::string& path) {
  const auto folder = std::filesystem::weakly_canonical(path);
  return folder.filename() == "model" && folder.has_parent_path() ? folder.parent_path().filename().string()
                                                                  : folder.filename().string();
}

length::Opened open_subject(const std::string& path, const ModelOptions& options, const EvalArguments& a,
                            const EvalMachine& machine) {
  ScoreOptions how = machine.score;
  how.cache = options.streaming();
  auto model = std::make_shared<LanguageModel>(open_model(path, options));
  to_machine(*model, machine, a.dtype);
  const std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer(path);
  check_tokenizer(model->config(), tokenizer->fingerprint(), tokenizer->vocab_size(), path);
  return {length::scorer(model, how, true), tokenizer, model->config(), model->device().str()};
}

std::vector<length::Subject> subjects(const LengthArguments& lengths, const EvalArguments& a,
                                      const EvalMachine& machine) {
  std::vector<std::string> variants = {""};  // the model as it is comes first
  variants.insert(variants.end(), lengths.variants.begin(), lengths.variants.end());
  std::vector<std::string> labels;
  for (const std::string& path : a.models) {
    std::string label = model_label(path);
    for (const std::string& other : a.models) {
      if (&other != &path && model_label(other) == label) label = path;
    }
    labels.push_back(label);
  }
  std::vector<length::Subject> all;
  for (size_t m = 0; m < a.models.size(); ++m) {
    for (const std::string& variant : variants) {
      const std::string& path = a.models[m];
      const ModelOptions options = length::parse_variant(variant, a.model_options);
      options.apply(ModelConfig::from_directory(path));  // what is wrong with it is said before hours of work
      options.streaming();
      all.push_back({variant.empty() ? labels[m] : labels[m] + " " + variant, path, variant,
                     [=, &a, &machine] { return open_subject(path, options, a, machine); }});
    }
  }
  return all;
}

}  // namespace

std::string command_line(const CLI::App& command) {
  std::string line = "lazy " + command.get_name();
  for (const CLI::Option* option : command.get_options()) {
    if (option->count() == 0 || option->get_name() == "--json") continue;
    const std::string name = option->get_positional() ? "" : " " + option->get_name();
    std::string values;
    for (std::string value : option->results()) {
      if (value.find_first_of(" '\"\\$&|;<>()*?") != std::string::npos) value = "'" + value + "'";
      if (option->get_items_expected_max() == 0) break;  // a flag
      if (option->get_delimiter() != '\0' && !values.empty()) {
        values += option->get_delimiter() + value;
      } else {
        values += (values.empty() ? "" : name) + " " + value;  // repeated
      }
    }
    line += name + values;
  }
  return line;
}

void add_length_options(CLI::App& command, LengthArguments& a) {
  const char* group = "Lengths (docs/length.md)";
  length::StudyOptions& s = a.study;
  command.add_option("--lengths", s.lengths, "Measure at these context lengths: 512,1024,...")
      ->delimiter(',')
      ->group(group);
  command
      .add_option("--variant", a.variants,
                  "Also with rope-base=X, positions=yarn:4 or cache=streaming:4+508 (several: commas); may be repeated")
      ->group(group);
  command.add_flag("--per-document", s.per_document, "Windows end with their document (default: documents joined)")
      ->group(group);
  command.add_option("--stride", s.stride, "Sliding windows that predict so many tokens each")
      ->check(CLI::PositiveNumber)
      ->group(group);
  command.add_option("--depths", a.depths, "Where the probes plant their facts, percent (default: 0,25,50,75,100)")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 100.0))
      ->group(group);
  command.add_option("--probe-samples", s.probe.samples, "Contexts a length and depth")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str()
      ->group(group);
  command.add_option("--pairs", s.probe.pairs, "Pairs of task recall")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str()
      ->group(group);
  command.add_option("--seed", s.probe.seed, "Of the probes and the intervals")->capture_default_str()->group(group);
  command.add_option("--resamples", s.resamples, "Of the bootstrap")
      ->check(CLI::Range(100, 1000000))
      ->capture_default_str()
      ->group(group);
  command.add_option("--report", a.report, "Write a page with curves here")->group(group);
}

void evaluate_lengths(LengthArguments lengths, const EvalArguments& a, const EvalMachine& machine) {
  for (const std::string& file : {a.output, lengths.report}) {
    if (std::filesystem::is_directory(file)) fail("eval", "{}: expected a file's name, found a folder", file);
  }
  length::StudyOptions& study = lengths.study;
  study.tasks = a.tasks;
  study.data = a.data;
  study.corpus = a.corpus;
  study.split = a.split;
  study.text = a.text;
  study.bos = a.bos;
  if (a.limit > 0) study.limit = a.limit;
  if (!lengths.depths.empty()) study.probe.depths.clear();
  for (const double percent : lengths.depths) study.probe.depths.push_back(percent / 100);
  study.date = today();
  study.command = a.command;
  const length::Json found = length::run(subjects(lengths, a, machine), study);
  if (!machine.first) return;
  const std::string json = found.dump(2, ' ', false, length::Json::error_handler_t::replace) + "\n";
  if (!lengths.report.empty())
    write_file_atomic(lengths.report, report::render_lengths(found, "--report", {a.command, study.date}));
  if (!a.output.empty()) write_file_atomic(a.output, json);
  fmt::print("{}", a.json ? json : length::to_table(found));
}

}  // namespace lazy::cli
