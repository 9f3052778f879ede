// The sections of the report. Each function returns HTML, or an empty string if no run has the data.
#pragma once
#include <string>
#include <vector>

#include "report/report.h"

namespace lazy::report {

// sections_results.cc
std::string result_tiles(const std::vector<RunData>& runs);
std::string result_table(const std::vector<RunData>& runs);
std::string benchmark_table(const std::vector<RunData>& runs);  // results of `lazy eval --tasks`
std::string length_losses(const std::vector<RunData>& runs);    // results of `lazy eval --lengths`
// sections_training.cc
std::string learning_curves(const std::vector<RunData>& runs);
std::string layer_curves(const std::vector<RunData>& runs);
// sections_attention.cc
std::string weight_pictures(const std::vector<RunData>& runs);  // density, sink ratio, released mass, alive fraction
std::string attention_maps(const std::vector<RunData>& runs);
// sections_model.cc
std::string learned_offsets(const std::vector<RunData>& runs);
std::string learned_distance_bias(const std::vector<RunData>& runs);
std::string further_measures(const std::vector<RunData>& runs);  // results of `lazy sinks --measures`
// sections_run.cc
std::string text_samples(const std::vector<RunData>& runs);
std::string what_was_run(const std::vector<RunData>& runs, const PageInfo& info);

// The name of a run with its color and marker; `legend` returns the names of all runs.
std::string run_name(const std::vector<RunData>& runs, size_t index);
std::string legend(const std::vector<RunData>& runs);

}  // namespace lazy::report
