#include "eval/tasks/question.h"

#include <algorithm>

#include "core/error.h"
#include "eval/python_text.h"

namespace lazy::eval {
namespace {

// A label as files have it: an integer, its digits, a truth value, or the text of the right choice.
int64_t label_of(const Task& task, const Fields& fields, const std::vector<std::string>& choices) {
  const Json value = task.label.value(fields);
  int64_t label = -1;
  if (value.is_boolean()) {
    label = value.get<bool>();
  } else if (value.is_number_integer()) {
    label = value.get<int64_t>();
  } else if (value.is_string()) {
    const std::string text = value.get<std::string>();
    const bool digits = !text.empty() && text.size() < 10 &&
                        std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (digits) {
      label = std::stoll(text);
    } else {
      const auto found = std::find(choices.begin(), choices.end(), text);
      if (found != choices.end()) label = found - choices.begin();
    }
  }
  if (label < 0 || label >= static_cast<int64_t>(choices.size())) {
    throw DocumentError(fmt::format("label {}: expected one of {} choices (0 to {}), found {}", task.label.source(),
                                    choices.size(), static_cast<int64_t>(choices.size()) - 1, shown(value)));
  }
  return label;
}

Question build(const Task& task, const Fields& fields, const std::string& before) {
  Question q;
  if (task.output_type == OutputType::loglikelihood_rolling) {
    q.text = q.target = task.text.text(fields);
    const std::string counted = task.counted.empty() ? q.text : task.counted.text(fields);
    q.words = python_word_count(counted);
    q.bytes = static_cast<int64_t>(counted.size());
  } else if (task.output_type == OutputType::loglikelihood) {
    q.target = task.continuation.text(fields);
    q.pairs.push_back({before + task.context.text(fields), q.target});
  } else {
    const bool two_contexts = !task.contexts.empty();
    q.choices = (two_contexts ? task.contexts : task.choices).texts(fields);
    if (q.choices.empty()) throw DocumentError("expected choices, found none");
    q.label = label_of(task, fields, q.choices);
    q.target = two_contexts ? task.continuation.text(fields) : std::to_string(q.label);
    const std::string context = two_contexts ? "" : task.context.text(fields);
    for (const std::string& choice : q.choices) {
      q.pairs.push_back(
          {before + (two_contexts ? choice : context), task.target_delimiter + (two_contexts ? q.target : choice)});
    }
  }
  return q;
}

template <typename Action>
auto at_row(const Row& row, const Action& action) {
  try {
    return action();
  } catch (const DocumentError& error) {
    fail("eval", "{}: {}", row.where, error.what());
  }
}

}  // namespace

Question make_question(const Task& task, const Row& row, const std::string& examples) {
  return at_row(row, [&] { return build(task, {row.document, task.columns}, task.prefix + examples); });
}

std::string make_example(const Task& task, const Row& row) {
  return at_row(row, [&]() -> std::string {
    const Question q = build(task, {row.document, task.columns}, "");
    if (task.output_type == OutputType::loglikelihood_rolling) return "";
    const TextPair& right = q.pairs[q.label < 0 ? 0 : static_cast<size_t>(q.label)];
    const std::string answer = task.output_type == OutputType::loglikelihood || !task.contexts.empty()
                                   ? q.target
                                   : q.choices[static_cast<size_t>(q.label)];
    return answer.empty() ? right.context : right.context + task.target_delimiter + answer + task.fewshot_delimiter;
  });
}

}  // namespace lazy::eval
