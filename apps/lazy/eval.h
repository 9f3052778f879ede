// The two parts of `lazy eval`: held-out loss and benchmarks (eval_models.cc), and measurements over context lengths
// (eval_length.cc).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "command.h"
#include "eval/length/length_eval.h"
#include "eval/score.h"
#include "model/model_options.h"

namespace lazy::cli {

struct EvalArguments {
  std::vector<std::string> models;  // model folders; with --compare, folders of results
  std::vector<std::string> tasks;
  std::string data, corpus, split = "validation", text, output, dtype = "fp32", device = "auto", batch_size = "auto";
  std::string command;  // command line, which is stored in the results
  ModelOptions model_options;
  int64_t max_length = 0, num_fewshot = 0;
  uint64_t fewshot_seed = 1234;
  double limit = 0;
  bool bos = false, no_bos = false, bos_every_window = false, log_samples = false, json = false, list_tasks = false,
       compare = false;
  bool download = false;
};

// Device and ranks of this process.
struct EvalMachine {
  std::string device;        // device of this rank: "cpu" or "cuda:N"
  eval::ScoreOptions score;  // only the batch size and the ranks are set
  bool first = true;         // whether this rank writes files and prints
};

int64_t parse_batch_size(const std::string& text);  // "auto" gives 0
void move_to_machine(LanguageModel& model, const EvalMachine& machine, const std::string& dtype);

// Logs a hint if the model needs BOS at the start of every window (Gemma) but the windows of the evaluation begin
// without BOS.
void hint_at_bos(const ModelConfig& config, const std::string& path);

void list_tasks();
void compare_folders(const EvalArguments& arguments);
// Evaluates one model, or evaluates several models and compares them with the first one.
void evaluate_models(const EvalArguments& arguments, const EvalMachine& machine);

// Additional options of `lazy eval --lengths`.
struct LengthArguments {
  std::vector<std::string> variants;
  eval::length::LengthEvalOptions options;
  std::vector<double> depths;  // positions of the answer, in percent of the context
  std::string report;
};

void add_length_options(CLI::App& command, LengthArguments& arguments);
void evaluate_lengths(LengthArguments lengths, const EvalArguments& arguments, const EvalMachine& machine);

}  // namespace lazy::cli
