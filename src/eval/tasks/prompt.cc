#include "eval/tasks/prompt.h"

#include <algorithm>

#include "core/error.h"

namespace lazy::eval {

namespace {

// Returns the 0-based index of the correct choice. Benchmark files store the label as an integer, a string of digits, a
// boolean, or the text of the choice.
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

// Converts a DocumentError to an Error that names the row.
template <typename Action>
auto with_location(const TaskDocument& row, const Action& action) {
  try {
    return action();
  } catch (const DocumentError& error) {
    fail("eval", "{}: {}", row.where, error.what());
  }
}

}  // namespace

Question make_question(const Task& task, const TaskDocument& row, const std::string& examples) {
  return with_location(row, [&] { return build(task, {row.document, task.columns}, task.prefix + examples); });
}

std::string make_example(const Task& task, const TaskDocument& row) {
  return with_location(row, [&]() -> std::string {
    const Question q = build(task, {row.document, task.columns}, "");
    if (task.output_type == OutputType::loglikelihood_rolling) return "";
    const TextPair& right = q.pairs[q.label < 0 ? 0 : static_cast<size_t>(q.label)];
    const std::string answer = task.output_type == OutputType::loglikelihood || !task.contexts.empty()
                                   ? q.target
                                   : q.choices[static_cast<size_t>(q.label)];
    return answer.empty() ? right.context : right.context + task.target_delimiter + answer + task.fewshot_delimiter;
  });
}

FewshotSampler::FewshotSampler(const Task& task, std::vector<TaskDocument> pool, int64_t count, uint64_t seed)
    : task_(task), pool_(std::move(pool)), count_(static_cast<size_t>(count)), random_(seed) {
  const size_t needed = count_ + (task.exclude_document ? 1 : 0);
  if (count_ > 0 && pool_.size() < needed) {
    fail("eval", "--num-fewshot {}: task {} needs {} examples to draw from, but only {} exist", count, task.name,
         needed, pool_.size());
  }
}

std::vector<const TaskDocument*> FewshotSampler::draw(const TaskDocument& document) {
  std::vector<const TaskDocument*> drawn;
  if (!task_.exclude_document) {
    for (const size_t i : random_.sample(pool_.size(), count_)) drawn.push_back(&pool_[i]);
    return drawn;
  }
  for (const size_t i : random_.sample(pool_.size(), count_ + 1)) {
    if (drawn.size() < count_ && pool_[i].document != document.document) drawn.push_back(&pool_[i]);
  }
  if (drawn.size() == count_) return drawn;
  // The pool contains the document more than once, so the examples are drawn again from all other rows.
  std::vector<const TaskDocument*> others;
  for (const TaskDocument& row : pool_) {
    if (row.document != document.document) others.push_back(&row);
  }
  if (others.size() < count_)
    fail("eval", "{}: expected {} examples that differ from the document, found {}", document.where, count_,
         others.size());
  drawn.clear();
  for (const size_t i : random_.sample(others.size(), count_)) drawn.push_back(others[i]);
  return drawn;
}

std::string FewshotSampler::next(const TaskDocument& document) {
  std::string examples;
  if (count_ == 0) return examples;
  for (const TaskDocument* row : draw(document)) examples += make_example(task_, *row);
  return examples;
}

}  // namespace lazy::eval
