// `lazy eval`: held-out loss and benchmarks of one model, of several beside each other, or of results that are there.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "eval/score.h"
#include "model/model_options.h"

namespace lazy::cli {

struct EvalArguments {
  std::vector<std::string> models;  // with --compare: folders of results
  std::vector<std::string> tasks;
  std::string data, corpus, split = "validation", text, output, dtype = "fp32", device = "auto", batch_size = "auto";
  std::string command;  // as it was given
  ModelOptions model_options;
  int64_t max_length = 0, num_fewshot = 0;
  uint64_t fewshot_seed = 1234;
  double limit = 0;
  bool bos = false, log_samples = false, json = false, list_tasks = false, compare = false;
};

// Where a rank computes, and with whom.
struct EvalMachine {
  at::Device device;
  eval::ScoreOptions score;  // batch size and ranks
  bool first = true;         // this rank writes and prints
};

int64_t batch_size_of(const std::string& text);  // "auto" is 0
void to_machine(LanguageModel& model, const EvalMachine& machine, const std::string& dtype);

void list_tasks();
void compare_folders(const EvalArguments& arguments);
// One model, or several and what lies between them.
void evaluate_models(const EvalArguments& arguments, const EvalMachine& machine);

}  // namespace lazy::cli
