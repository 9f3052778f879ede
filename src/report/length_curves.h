// The pictures of the length page, one task each.
#pragma once
#include <string>

#include "report/json_file.h"

namespace lazy::report {

// The study's models with their colours and marks.
std::string length_legend(const Field& models);
std::string length_name(const Field& models, size_t index);
// Perplexity by window, loss by position, and the table with intervals. `task`: "wikitext", ...
std::string perplexity_by_length(const Field& models, const Field& result);
std::string loss_by_position(const Field& models, const Field& result);
std::string length_table(const Field& models, const Field& result, const std::string& key, const std::string& what);
std::string change_table(const Field& models, const Field& result);
std::string lambada_words(const Field& models, const Field& result);
std::string probe_maps(const Field& models, const Field& result, const std::string& task);

}  // namespace lazy::report
