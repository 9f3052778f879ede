// `lazy init`: writes a training configuration for the given text, the given time and this machine.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "benchmarks/benchmarks.h"
#include "command.h"
#include "common_options.h"
#include "core/counted.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/stop.h"
#include "core/text.h"
#include "data/prepare.h"
#include "data/tokenizer.h"
#include "model/config.h"
#include "model/device.h"
#include "model/language_model.h"
#include "model_path.h"
#include "train/config.h"
#include "train/sizing.h"

namespace lazy {
namespace {
namespace fs = std::filesystem;

struct InitArguments {
  std::vector<std::string> texts;
  fs::path output, corpus;
  std::string from;  // model folder of the option --from
  std::string device = "auto", dtype = "auto", kind = "lazy", name;
  double minutes = 30;
  int64_t memory = 0;
  bool force = false, download = false;
};

// Returns a text with the most frequent file extensions and their counts, such as "512 .py, 3 .md".
std::string describe(const TextFacts& facts) {
  std::vector<std::pair<int64_t, std::string>> counts;
  for (const auto& [ending, files] : facts.files) counts.emplace_back(files, ending);
  std::sort(counts.rbegin(), counts.rend());
  std::vector<std::string> parts;
  for (const auto& [files, ending] : counts) {
    if (parts.size() == 4) break;
    parts.push_back(fmt::format("{} {}", files, ending));
  }
  return fmt::format("{}{}", fmt::join(parts, ", "), counts.size() > parts.size() ? ", ..." : "");
}

// Returns the number of bytes that a run may use: a share of the GPU's memory, or of the memory that is free in this
// machine and in this control group.
int64_t usable_memory(const std::string& device) {
  // The remaining 20 % are for CUDA's context, the program, rounding by the allocator, and other processes.
  constexpr double kShare = 0.8;
  double bytes = 0;
  if (device == "cuda") {
    const auto all = gpus();
    bytes = all.empty() ? 0 : static_cast<double>(all.front().memory);
  } else {
    std::ifstream meminfo("/proc/meminfo");
    std::string key, unit;
    for (double kib = 0; meminfo >> key >> kib && std::getline(meminfo, unit);) {
      if (key == "MemAvailable:") bytes = 1024 * kib;
    }
    if (double limit = 0; std::ifstream("/sys/fs/cgroup/memory.max") >> limit) bytes = std::min(bytes, limit);
  }
  return static_cast<int64_t>(kShare * bytes);
}

// The corpus: an existing folder, or a corpus that is prepared from the text.
struct Corpus {
  fs::path folder;
  CorpusInfo info;
  std::vector<std::string> facts;  // lines about the corpus, written as comments to the configuration
  std::string command;             // command that prepares the corpus; empty for an existing corpus
};

Corpus prepare(const InitArguments& o) {
  Corpus corpus;
  if (o.texts.size() == 1 && fs::exists(fs::path(o.texts[0]) / "corpus.json")) {
    corpus.folder = o.texts[0];
    corpus.info = read_corpus_info(corpus.folder);
    corpus.facts = {"An existing corpus: its tokenizer and documents are used unchanged."};
    return corpus;
  }
  const TextFacts text = text_facts(find_sources(o.texts, std::nullopt, /*code=*/true));
  PrepareOptions prepare;
  prepare.inputs = o.texts;
  prepare.code = true;
  prepare.output = corpus.folder = o.corpus;
  prepare.replace = o.force;
  prepare.threads = thread_count();
  if (!o.from.empty()) {
    prepare.tokenizer = o.from;
  } else {
    prepare.train_pieces = train::tokenizer_pieces(text.bytes);
    if (prepare.train_pieces == 0) prepare.tokenizer = "bytes";
  }
  prepare.documents.max_bytes = train::cut_documents_at(text.bytes, text.documents);
  corpus.facts = {fmt::format("{} of {}: {}.", human_bytes(static_cast<double>(text.bytes)),
                              2 * text.code_bytes > text.bytes ? "source code" : "text", describe(text)),
                  !o.from.empty() ? "The tokenizer is the tokenizer of the model."
                  : prepare.train_pieces
                      ? fmt::format("Tokenizer: BPE with {} tokens, trained on this text; the vocabulary size is "
                                    "chosen so that a token occurs about a hundred times on average.",
                                    prepare.train_pieces)
                      : "Tokenizer: bytes; the text is too small to train a tokenizer."};
  corpus.command = "lazy data prepare";
  for (const std::string& name : o.texts) corpus.command += " " + cli::shell_word(name);
  corpus.command += " --code --output " + cli::shell_word(o.corpus.string());
  corpus.command += prepare.train_pieces ? fmt::format(" --train-tokenizer {}", prepare.train_pieces)
                                         : " --tokenizer " + cli::shell_word(prepare.tokenizer);
  if (prepare.documents.max_bytes > 0) {
    corpus.facts.push_back(
        fmt::format("Documents longer than {} are cut, so that there are enough documents for a validation "
                    "split.",
                    human_bytes(static_cast<double>(prepare.documents.max_bytes))));
    corpus.command += fmt::format(" --max-document {}", prepare.documents.max_bytes);
  }
  log::info("{}", corpus.facts.front());
  corpus.info = prepare_corpus(prepare);
  return corpus;
}

double measure_speed(const InitArguments& o, const train::SizingRequest& request, const train::RunSize& size,
                     double guess, double seconds) {
  end_if_stopped("init", "no configuration was written");
  constexpr int64_t kUntimed = 3;  // number of warm-up steps that measure_train() runs before the timed steps
  benchmarks::TrainBenchmark b;
  b.model = train::model_of(size, request);
  b.device = o.device;
  b.dtype = request.bf16 ? "bf16" : "fp32";
  b.batch = size.batch_size;
  b.length = size.seq_len;
  const double steps = seconds * guess / static_cast<double>(size.batch_size * size.seq_len);
  b.steps = std::clamp<int64_t>(static_cast<int64_t>(steps) - kUntimed, 3, 100);
  log::info("measuring {} steps of {} x {} tokens", b.steps + kUntimed, size.batch_size, size.seq_len);
  const double rate = benchmarks::measure_train(b)["tokens_per_second"];
  log::info("{} of width {}: {} tokens/s with batch {} x {}", counted(b.model.num_layers, "layer"), b.model.hidden_size,
            human_count(rate), size.batch_size, size.seq_len);
  return rate;
}

std::string comment(const std::string& text) { return wrapped("# " + text, "# ", 100) + "\n"; }

// Returns the configuration keys that make training sequences mark the beginning of documents in the same way as the
// model's tokenizer marks the beginning of a text.
std::string document_marks(const std::string& model) {
  const auto tokenizer = load_tokenizer(model);
  const bool begins = tokenizer->bos_id() && !tokenizer->tokens().prefix.empty();
  if (begins || !tokenizer->eos_id()) return "";
  return comment("The tokenizer does not put BOS before a text, so documents end with EOS.") +
         "eos_per_document = true\n";
}

// Returns whether all attention offsets are zero, as in a model that `lazy convert --to lazy` has just written.
bool offsets_are_zero(const std::string& folder) {
  const LanguageModel model = LanguageModel::load(folder);
  return model.tau(0).defined() && model.tau(0).eq(0).all().item<bool>();
}

std::string toml(const InitArguments& o, const Corpus& corpus, const train::SizingRequest& r, const train::RunSize& s,
                 const fs::path& run) {
  const auto& train = corpus.info.splits.at("train");
  const auto count = [](int64_t n) { return human_count(static_cast<double>(n)); };
  const auto path = [&](const fs::path& target) {
    return nlohmann::json(fs::proximate(target, o.output.parent_path().empty() ? "." : o.output.parent_path()).string())
        .dump();
  };
  const double tokens = static_cast<double>(s.steps * s.step_tokens());
  std::string out = comment(fmt::format("Written by `lazy init --minutes {:g}` on this machine ({}, {} threads, {}).",
                                        o.minutes, o.device, thread_count(), r.bf16 ? "bf16" : "fp32"));
  // This line is not wrapped, so that the user can copy the command.
  out += "# Run: lazy train " + cli::shell_word(o.output.string()) + "\n";
  out += comment(
      fmt::format("Expected duration: {} (measured: {} tokens/s; {:.0f} % of the time is for steps, the rest for "
                  "start, validation and checkpoints). Expected memory: about {} of the allowed {}.",
                  human_seconds(s.seconds), human_count(s.tokens_per_second), 100 * train::kStepsShare,
                  human_bytes(static_cast<double>(s.memory)), human_bytes(static_cast<double>(r.memory))));
  out += comment("`lazy help configuration` describes all keys.");

  out += "\n[data]\n";
  for (const std::string& fact : corpus.facts) out += comment(fact);
  if (!corpus.command.empty()) out += "# Written by: " + corpus.command + "\n";
  out += fmt::format("corpus = {}\n", path(corpus.folder));
  if (!o.from.empty()) out += document_marks(o.from);

  out += "\n[model]\n";
  if (!o.from.empty()) {
    out += fmt::format("# {} parameters.\nfrom = {}\n", count(s.parameters), path(o.from));
    if (r.model->has_offset() && offsets_are_zero(o.from)) {
      out += comment("During the first 35 % of the steps, tau is shifted to -1, in addition to its learned value.");
      out += "offset_schedule = { from = 0, to = -1, steps = 0.35 }\n";
    }
  } else {
    out += comment(
        fmt::format("{} parameters, {} of them in the layers: {:.1f} tokens per layer parameter. Of the shapes that "
                    "fit into the memory, this one has the lowest expected loss after the requested time: larger "
                    "models see too few tokens, and smaller ones learn less from each token. The best ratio is about "
                    "20 if the speed does not depend on the shape and there is enough text.",
                    count(s.parameters), count(s.layer_parameters), tokens / static_cast<double>(s.layer_parameters)));
    out += comment(s.tied ? "Tied embeddings: a second table would exceed a tenth of the layers' parameters."
                          : "Embedding and head are separate tables, because both are small compared with the layers.");
    out += train::model_section(s.shape, o.kind, s.tied, s.seq_len);
  }

  out += "\n[training]\n";
  out += comment(fmt::format(
      "The run has {} of {} tokens each, in total {} tokens or {:.2f} passes over the {} tokens of the training split. "
      "{}",
      counted(s.steps, "step"), s.step_tokens(), human_count(tokens), s.passes, count(train.tokens),
      s.limited_by_text
          ? fmt::format(
                "The limit is {:g} passes, because more passes improve little. More text would allow more steps.",
                train::kMaxPasses)
          : "The time does not allow more steps."));
  out += fmt::format("steps = {}\n", s.steps);
  out += comment("If the machine is slower than measured, fewer steps are run and the learning rate decays earlier.");
  out += fmt::format("minutes = {:g}\n", o.minutes);
  out +=
      comment(o.from.empty() ? "Context length: twice the cube root of the run's tokens, rounded to a power of two."
                             : fmt::format("Tokens per sequence: the context length of the model ({}), limited to {} "
                                           "and to a length of which each split of the text has {} sequences.",
                                           r.model->max_length, train::kMaxSequenceFromModel, train::kMinSequences));
  out += fmt::format("seq_len = {}\n", s.seq_len);
  out +=
      comment(fmt::format("Sequences per micro-batch{}. A step has about 1/2000 of the run's tokens: fewer and "
                          "larger steps learn less, and the fixed cost of smaller steps would dominate.",
                          s.accumulation > 1 ? ", as many as fit into the memory" : ""));
  out += fmt::format("batch_size = {}\n", s.batch_size);
  if (s.accumulation > 1) out += fmt::format("gradient_accumulation_steps = {}\n", s.accumulation);
  out += fmt::format("device = \"{}\"\ndtype = \"{}\"\n", o.device, r.bf16 ? "bf16" : "fp32");
  out += fmt::format("output = {}\n", path(run));
  out += fmt::format("name = {}\n", nlohmann::json(run.filename().string()).dump());

  out += "\n[optimizer]\n";
  out +=
      comment(o.from.empty() ? "Decreases with the width: 1 / hidden_size, at most 4e-3."
                             : "A value for continued training of small models; use 1e-4 or less above 1B parameters.");
  out += fmt::format("lr = {:.2g}\nweight_decay = {}\n", s.lr, o.from.empty() ? 0.1 : 0.01);

  out += "\n[validation]\n";
  out += comment("Ten validations per run, which take about a twentieth of its time.");
  out += fmt::format("every = {}\nbatches = {}\n", s.validation_every, s.validation_batches);

  out += "\n[checkpoint]\n";
  out += comment("An interrupted run continues from the newest checkpoint: lazy train ... --resume");
  out += fmt::format("every = {}\n", 2 * s.validation_every);

  out += "\n[metrics]\n";
  out += fmt::format("log_every = {}\n", std::max<int64_t>(1, s.steps / 200));
  return out;
}

void run(InitArguments o) {
  install_stop_handlers();
  if (fs::exists(o.output) && !o.force) {
    fail("init", "{}: already exists; choose another --output, or replace it with --force", o.output.string());
  }
  if (o.output.extension() != ".toml")
    fail("init", "--output: expected a name that ends in .toml, found {}", o.output.string());
  const fs::path folder = o.output.parent_path();
  if (!folder.empty() && !fs::is_directory(folder)) fail("init", "{}: no such folder", folder.string());
  const std::string name = o.name.empty() ? o.output.stem().string() : o.name;
  const fs::path run = folder / "runs" / name;
  if (fs::exists(run / "checkpoints") || fs::exists(run / "model")) {
    fail("init", "{}: already contains a run; choose another --name, or remove it", run.string());
  }
  if (o.corpus.empty()) o.corpus = folder / (o.output.stem().string() + "-corpus");
  std::optional<ModelConfig> pretrained;
  if (!o.from.empty()) {
    o.from = cli::resolve_model_folder("init", o.from, o.download);
    pretrained = ModelConfig::from_directory(o.from);
  }
  o.device = resolve_device(o.device);
  o.dtype = resolve_dtype(o.dtype, o.device);

  const Corpus corpus = prepare(o);
  train::SizingRequest request;
  const auto split = [&](const char* key) {
    const auto found = corpus.info.splits.find(key);
    return found == corpus.info.splits.end() ? 0 : found->second.tokens;
  };
  request.train_tokens = split("train");
  request.validation_tokens = split("validation");
  request.vocab_size = corpus.info.tokenizer.vocab_size;
  request.kind = o.kind;
  request.model = pretrained;
  request.seconds = 60 * o.minutes;
  request.memory = o.memory > 0 ? o.memory : usable_memory(o.device);
  request.bf16 = o.dtype == "bf16";
  request.gpu = o.device == "cuda";
  const train::RunSize size = choose_size(request, [&](const train::RunSize& candidate, double guess, double seconds) {
    return measure_speed(o, request, candidate, guess, seconds);
  });
  write_file_atomic(o.output, toml(o, corpus, request, size, run));
  train::TrainConfig::load(o.output);  // throws an Error if `lazy train` would reject the configuration
  log::info("{} parameters; {} of {} tokens each, {:.2f} passes over the text; expected time: {}",
            human_count(static_cast<double>(size.parameters)), counted(size.steps, "step"), size.step_tokens(),
            size.passes, human_seconds(size.seconds));
  fmt::print("{}\n", o.output.string());
}

}  // namespace

LAZY_COMMAND(init, "Write a training configuration for a text, a time and this machine", [](CLI::App& command) {
  auto o = std::make_shared<InitArguments>();
  command
      .add_option("text", o->texts,
                  "Files or folders as for `lazy data prepare`, including source code; or an existing corpus")
      ->required();
  command.add_option("-o,--output", o->output, "The configuration to write (.toml)")->required();
  command.add_option("--minutes", o->minutes, "Maximum duration of the training in minutes")
      ->check(cli::kPositive)
      ->capture_default_str();
  command
      .add_option("--memory", o->memory, "Maximum memory of the training, e.g. 8GiB (default: 80 % of the free memory)")
      ->transform(CLI::AsSizeValue(false));
  cli::add_placement_options(command, o->device, o->dtype);
  const auto kind = command.add_option("--kind", o->kind, "Model")
                        ->check(cli::one_of({"lazy", "transformer"}))
                        ->capture_default_str();
  command
      .add_option("--from", o->from,
                  "Model folder or run folder to start from: its tokenizer and its weights, instead of --kind")
      ->excludes(kind);
  cli::add_download_option(command, o->download);
  command.add_option("--name", o->name,
                     "Name of the run in runs/ next to the configuration (default: the file's name)");
  command.add_option("--corpus", o->corpus,
                     "Where to write the corpus (default: OUTPUT-corpus next to the configuration)");
  command.add_flag("--force", o->force, "Replace an existing configuration and its corpus");
  command.footer(
      "Examples:\n"
      "  lazy init novels/ --output novels.toml --minutes 30\n"
      "  lazy init src/ README.md --output code.toml --kind transformer --memory 4GiB\n"
      "  lazy train novels.toml\n"
      "  lazy init novels/ --from smollm2-lazy --output tune.toml --minutes 60\n"
      "\n"
      "Prepares the corpus, trains a tokenizer on it, times training steps of a few model sizes on this "
      "machine,\n"
      "and explains each value in a comment. With --from, the tokenizer and the size are taken from the model. A "
      "model\n"
      "that was written by `lazy convert --to lazy` gets an offset_schedule, which makes its attention sparse.");
  command.callback([o] {
    cli::share_cores();  // `lazy train` calls share_cores() too, and its speed is measured here
    run(*o);
  });
});

}  // namespace lazy
