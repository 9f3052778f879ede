// `lazy eval --lengths`: perplexity and probes over context lengths, for several models and variants of them.
#pragma once
#include <CLI/CLI.hpp>

#include <string>
#include <vector>

#include "eval/length/study.h"
#include "eval_models.h"

namespace lazy::cli {

struct LengthArguments {
  std::vector<std::string> variants;
  lazy::eval::length::StudyOptions study;
  std::vector<double> depths;  // percent
  std::string report;
};

// The command as it was given, but for --json: what results and pages say made them.
std::string command_line(const CLI::App& command);
void add_length_options(CLI::App& command, LengthArguments& arguments);
void evaluate_lengths(LengthArguments lengths, const EvalArguments& arguments, const EvalMachine& machine);

}  // namespace lazy::cli
