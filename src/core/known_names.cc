#include "core/known_names.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/config.h"
#include "core/error.h"
#include "core/text.h"

namespace lazy {

bool contains(const std::vector<std::string>& list, const std::string& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& known) {
  const std::string near = nearest(word, known);
  return near.empty() ? "" : fmt::format("; did you mean '{}'?", near);
}

void fail_unknown(const char* operation, const std::string& place, const std::string& word,
                  const std::vector<std::string>& known, const std::string& what) {
  const std::string list = fmt::format("{}", fmt::join(known, ", "));
  fail(operation, "{}: expected {}, found '{}'{}", place,
       what.empty() ? "one of " + list : fmt::format("{} ({})", what, list), word, did_you_mean(word, known));
}

void expect_known(const std::string& place, const std::string& word, const std::vector<std::string>& known,
                  const std::string& what) {
  if (!contains(known, word)) fail_unknown("config", place, word, known, what);
}

void expect_known(const ConfigSection& section, const std::string& key, const std::string& word,
                  const std::vector<std::string>& known, const std::string& what) {
  expect_known(fmt::format("{}: {}.{}", section.where(key), section.name(), key), word, known, what);
}

}  // namespace lazy
