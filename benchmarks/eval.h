// Speed of scoring benchmark questions, beside the plain way: every choice with its context as a padded row, the logits
// of all positions. Questions of random tokens, with lengths drawn around those given.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "model/config.h"

namespace lazy::benchmarks {

struct EvalBenchmark {
  ModelConfig model;
  std::string name;             // of the model, for the figures
  std::string device = "auto";  // "cpu", "cuda"
  std::string dtype = "auto";   // "fp32", "bf16"
  int64_t questions = 64, choices = 4;
  int64_t context = 80, choice = 24;  // tokens on average; from half as many to one and a half times
  int64_t batch = 16;                 // rows of the plain way
  int repeats = 3;                    // medians of this many
};

// Prints a table and returns the same figures: milliseconds, requests_per_second, tokens of both ways. RunError when
// the log-likelihoods differ by more than rounding.
nlohmann::json run_eval(const EvalBenchmark& options);

}  // namespace lazy::benchmarks
