// A document's record in lm-evaluation-harness's schema, a line of samples_<task>_<date>.jsonl.
#pragma once
#include <string>
#include <vector>

#include "eval/metrics.h"

namespace lazy::eval {

// doc_id, doc, target, arguments, resps and filtered_resps (log-likelihood and greedy flag of each request, as texts),
// filter, metrics, doc_hash, prompt_hash, target_hash, and the values of the metrics.
Json sample_record(const Task& task, int64_t doc_id, const Row& row, const Question& question,
                   const std::vector<Score>& scores, const std::vector<double>& values);

}  // namespace lazy::eval
