#include "eval/tasks/task.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "builtin_tasks.h"
#include "core/error.h"
#include "core/file.h"
#include "core/known_names.h"

namespace lazy::eval {

const char* name(OutputType type) {
  return type == OutputType::multiple_choice ? "multiple_choice"
         : type == OutputType::loglikelihood ? "loglikelihood"
                                             : "loglikelihood_rolling";
}

std::vector<std::string> TextList::texts(const Fields& fields) const {
  if (each.empty()) return whole.texts(fields);
  std::vector<std::string> out;
  for (const Template& one : each) out.push_back(one.text(fields));
  return out;
}

Json TextList::source() const {
  if (each.empty()) return whole.source();
  Json list = Json::array();
  for (const Template& one : each) list.push_back(one.source());
  return list;
}

const std::vector<Task>& builtin_tasks() {
  static const std::vector<Task> all = [] {
    std::vector<Task> tasks;
    for (const BuiltinTask& task : kBuiltinTasks) tasks.push_back(parse_task(task.toml, task.file));
    return tasks;
  }();
  return all;
}

std::vector<Task> select_tasks(const std::vector<std::string>& names) {
  std::vector<Task> selected;
  const auto add = [&](const Task& task) {
    const auto same =
        std::find_if(selected.begin(), selected.end(), [&](const Task& other) { return other.name == task.name; });
    if (same == selected.end()) return selected.push_back(task);
    if (same->origin != task.origin)
      fail("eval", "--tasks: {} and {} both define a task with the name {}", same->origin, task.origin, task.name);
  };
  for (const std::string& wanted : names) {
    if (wanted.ends_with(".toml")) {
      add(parse_task(read_file(wanted), wanted));
      continue;
    }
    bool found = false;
    std::vector<std::string> known = {"all"};
    for (const Task& task : builtin_tasks()) {
      known.push_back(task.name);
      known.insert(known.end(), task.tags.begin(), task.tags.end());
      if (wanted != "all" && wanted != task.name && !contains(task.tags, wanted)) continue;
      add(task);
      found = true;
    }
    if (found) continue;
    std::sort(known.begin(), known.end());
    known.erase(std::unique(known.begin(), known.end()), known.end());
    known.push_back("heldout");
    fail("eval", "task '{}': expected one of {} or a file that ends in .toml{}", wanted, fmt::join(known, ", "),
         did_you_mean(wanted, known));
  }
  return selected;
}

Task find_task(const std::string& name) { return select_tasks({name}).front(); }

}  // namespace lazy::eval
