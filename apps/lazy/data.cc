// `lazy data prepare` and `lazy data inspect`: convert text to shards, and show the contents of shards.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "command.h"
#include "model_path.h"

#include "core/config_files.h"
#include "core/counted.h"
#include "core/log.h"
#include "core/stop.h"
#include "core/text.h"
#include "data/inspect.h"
#include "data/prepare.h"
#include "data/sequences.h"
#include "model/device.h"
#include "train/config.h"
#include "train/run_info.h"

namespace lazy {
namespace {

void prepare(PrepareOptions options, bool download) {
  options.tokenizer = cli::resolve_tokenizer("data", options.tokenizer, download);
  install_stop_handlers();
  options.threads = thread_count();
  const CorpusInfo info = prepare_corpus(options);
  for (const auto& [name, split] : info.splits) {
    log::info("{}: {}, {} tokens, {} of text", name, counted(split.documents, "document"),
              human_count(static_cast<double>(split.tokens)), human_bytes(static_cast<double>(split.source_bytes)));
  }
  fmt::print("{}\n", options.output.string());
}

void add_prepare(CLI::App& data) {
  auto options = std::make_shared<PrepareOptions>();
  auto format = std::make_shared<std::string>();
  auto download = std::make_shared<bool>(false);
  CLI::App& command = *data.add_subcommand("prepare", "Convert text to a corpus of memory-mapped shards");
  command
      .add_option("input", options->inputs,
                  "Files or folders: .txt .md .jsonl .pod, also compressed as .gz or .zst, and .parquet; - for "
                  "standard input")
      ->required();
  command.add_option("-o,--output", options->output, "The corpus folder to write")->required();
  CLI::Option_group* tokenizer = command.add_option_group("tokenizer", "The tokenizer (exactly one of these options)");
  tokenizer->require_option(1);
  tokenizer->add_option("--tokenizer", options->tokenizer,
                        "\"bytes\", a .model file, a tokenizer.json, or a folder with one of these");
  tokenizer
      ->add_option("--train-tokenizer", options->train_pieces,
                   "Train a SentencePiece BPE tokenizer with this many tokens")
      ->check(cli::kPositive);
  cli::add_download_option(command, *download);
  command.add_option("--train-bytes", options->train_bytes, "Amount of text that is sampled to train the tokenizer")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  command
      .add_option("--text-field", options->documents.text_field,
                  "Field of JSON lines or column of Parquet files that has the text")
      ->capture_default_str();
  command
      .add_option("--format", *format,
                  "Format of standard input (default: text), and of files whose extension is unknown")
      ->check(cli::one_of({"text", "jsonl", "pod", "parquet"}));
  command
      .add_option("--split-blank", options->documents.split_blank,
                  "Plain text: split documents at this many blank lines (0: one file is one document)")
      ->check(cli::kNonNegative)
      ->capture_default_str();
  command
      .add_option("--max-document", options->documents.max_bytes,
                  "Cut documents longer than this, e.g. 64kb (0: never)")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  command.add_flag("--strict", options->documents.strict,
                   "Stop at the first line without text; by default such lines are skipped and counted");
  command.add_flag("--code", options->code,
                   "Also read source code in folders (.py .c .js ...); each file is a document");
  command.add_flag("--pod-code", options->documents.pod_code, "Keep the code examples of .pod files");
  command.add_option("--validation", options->validation, "Fraction of the documents in the validation split")
      ->check(CLI::Range(0.0, 0.999))
      ->capture_default_str();
  command.add_option("--seed", options->seed, "Seed of the split and of the tokenizer's training sample")
      ->capture_default_str();
  command.add_option("--shard-size", options->shard_bytes, "Target size of a shard file")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  command.add_flag("--force", options->replace, "Replace an existing corpus");
  command.footer(
      "Examples:\n"
      "  lazy data prepare book.txt --output corpus --train-tokenizer 4096 --max-document 64kb\n"
      "  lazy data prepare wiki/*.jsonl.zst --output corpus --tokenizer tokenizer.model --threads 8\n"
      "  lazy data prepare fineweb-edu/sample/100BT --output corpus --tokenizer llama2/   (a folder of .parquet)\n"
      "  zcat dump.jsonl.gz | lazy data prepare - --format jsonl --output corpus --tokenizer gpt2/");
  command.callback([options, format, download] {
    if (!format->empty()) {
      options->other_format = *format == "jsonl"     ? TextFormat::json_lines
                              : *format == "pod"     ? TextFormat::pod
                              : *format == "parquet" ? TextFormat::parquet
                                                     : TextFormat::plain;
    }
    prepare(*options, *download);
  });
}

// Prints how many sequences of each corpus a run of this configuration reads.
void print_mixture(const std::string& path, bool json) {
  const auto config = train::TrainConfig::load(path);
  const Sequences sequences(config.corpus, config.train_split, config.sequences);
  const int64_t read = config.tokens_per_step() / config.seq_len * config.steps;
  const auto parts = train::corpus_facts(sequences, read);
  if (json) {
    fmt::print("{}\n", nlohmann::ordered_json({{"sequences_read", read}, {"parts", parts}}).dump(2));
    return;
  }
  fmt::print("{} sequences of {} tokens in {}\n", human_count(static_cast<double>(read)), config.seq_len,
             counted(config.steps, "step"));
  fmt::print("{:<24} {:>10} {:>10} {:>9} {:>9} {:>9}\n", "corpus", "tokens", "sequences", "weight", "share", "epochs");
  for (const auto& part : parts) {
    fmt::print("{:<24} {:>10} {:>10} {:>8.3f}% {:>8.3f}% {:>9.3f}\n", part["name"].get<std::string>(),
               human_count(part["tokens"].get<double>()), human_count(part["sequences"].get<double>()),
               100 * part["weight"].get<double>(), 100 * part["share"].get<double>(), part["epochs"].get<double>());
  }
}

void add_inspect(CLI::App& data) {
  struct Options {
    InspectOptions inspect;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App& command = *data.add_subcommand(
      "inspect", "Show the contents of a corpus or a shard, or the corpora that a configuration reads");
  command.add_option("path", options->inspect.path, "Corpus folder, shard file, or configuration (.toml)")->required();
  command.add_option("--documents", options->inspect.documents, "Number of documents to show as text")
      ->capture_default_str();
  command.add_option("--first", options->inspect.first, "Index of the first document to show")->capture_default_str();
  command.add_option("--split", options->inspect.split, "Split of the corpus")->capture_default_str();
  command.add_flag("--verify", options->inspect.verify, "Read every token and verify the checksums");
  command.add_flag("--json", options->json, "Print JSON");
  command.footer(
      "Examples:\n"
      "  lazy data inspect corpus --documents 2 --split validation\n"
      "  lazy data inspect runs/mixture/config.toml   (shares and epochs of its corpora)");
  command.callback([options] {
    if (is_config_file(config_parts(options->inspect.path)[0]))
      return print_mixture(options->inspect.path.string(), options->json);
    fmt::print("{}", options->json ? inspect_json(options->inspect) : inspect_text(options->inspect));
  });
}

}  // namespace

LAZY_COMMAND(data, "Prepare text for training and inspect corpora", [](CLI::App& command) {
  command.require_subcommand(1);
  add_prepare(command);
  add_inspect(command);
});

}  // namespace lazy
