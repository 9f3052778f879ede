// The page's parts. Each returns HTML, or nothing when no run has what it shows.
#pragma once
#include <string>
#include <vector>

#include "report/report.h"

namespace lazy::report {

std::string result_tiles(const std::vector<RunData>& runs);
std::string result_table(const std::vector<RunData>& runs);
std::string benchmark_table(const std::vector<RunData>& runs);  // of `lazy eval --tasks`
std::string length_losses(const std::vector<RunData>& runs);    // of `lazy eval --lengths`
std::string learning_curves(const std::vector<RunData>& runs);
std::string layer_curves(const std::vector<RunData>& runs);
std::string weight_pictures(const std::vector<RunData>& runs);  // density, sink ratio, released mass, alive fraction
std::string learned_offsets(const std::vector<RunData>& runs);
std::string learned_distance_bias(const std::vector<RunData>& runs);
std::string attention_maps(const std::vector<RunData>& runs);
std::string further_measures(const std::vector<RunData>& runs);  // those of lazy sinks --measures
std::string text_samples(const std::vector<RunData>& runs);
std::string what_was_run(const std::vector<RunData>& runs, const PageInfo& info);

// Shared pieces.
std::string page_header(const std::string& eyebrow, const std::string& date, const std::string& title,
                        const std::string& detail, const std::string& more = "");
std::string section(const std::string& id, const std::string& title, const std::string& lead, const std::string& body);
std::string figure(const std::string& picture, const std::string& caption, const std::string& css_class = "");
// "<span class=run>swatch name</span>"; the index chooses colour and marker.
std::string series_name(size_t index, const std::string& name);
std::string run_name(const std::vector<RunData>& runs, size_t index);
std::string legend(const std::vector<RunData>& runs);
std::string code(const std::string& command);

}  // namespace lazy::report
