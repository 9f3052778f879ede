#include "eval/samples.h"

#include <cmath>

#include "core/checksum.h"

namespace lazy::eval {
namespace {

std::string python_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  return Json(value).dump();
}

std::string dumped(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// Python's int for a count of greedy answers, its float for a choice, its tuple for what is weighted.
Json recorded(const Task& task, size_t metric, const Question& question, double value) {
  const std::string& name = task.metrics[metric];
  if (task.output_type == OutputType::loglikelihood_rolling)
    return Json::array({value, name == "word_perplexity" ? question.words : question.bytes});
  if (task.output_type == OutputType::loglikelihood && name == "acc") return static_cast<int64_t>(value);
  return value;
}

}  // namespace

Json sample_record(const Task& task, int64_t doc_id, const Row& row, const Question& question,
                   const std::vector<Score>& scores, const std::vector<double>& values) {
  const bool rolling = task.output_type == OutputType::loglikelihood_rolling;
  Json record = {{"doc_id", doc_id}, {"doc", row.document}, {"target", question.target}};
  Json arguments = Json::object(), responses = Json::array(), filtered = Json::array();
  for (size_t i = 0; i < scores.size(); ++i) {
    Json& argument = arguments["gen_args_" + std::to_string(i)];
    argument["arg_0"] = rolling ? question.text : question.pairs[i].context;
    if (!rolling) argument["arg_1"] = question.pairs[i].continuation;
    Json response = python_number(scores[i].log_likelihood);
    if (!rolling) response = Json::array({response, scores[i].greedy ? "True" : "False"});
    responses.push_back(Json::array({response}));
    filtered.push_back(std::move(response));
  }
  record["arguments"] = std::move(arguments);
  record["resps"] = std::move(responses);
  record["filtered_resps"] = std::move(filtered);
  record["filter"] = "none";
  record["metrics"] = task.metrics;
  record["doc_hash"] = sha256_hex(dumped(row.document, 2));
  record["prompt_hash"] = sha256_hex(rolling ? question.text : question.pairs[0].context);
  record["target_hash"] = sha256_hex(question.target);
  for (size_t m = 0; m < values.size(); ++m) record[task.metrics[m]] = recorded(task, m, question, values[m]);
  return record;
}

}  // namespace lazy::eval
