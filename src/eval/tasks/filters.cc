#include "eval/tasks/filters.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <map>
#include <mutex>

#include "core/known_names.h"
#include "eval/python.h"

namespace lazy::eval {
namespace {

using Arguments = std::vector<Json>;

template <typename... Values>
[[noreturn]] void refuse(fmt::format_string<Values...> format, Values&&... values) {
  throw DocumentError(fmt::format(format, std::forward<Values>(values)...));
}

const std::string& text_of(const Json& value) {
  if (!value.is_string()) refuse("expected text, found {}", shown(value));
  return value.get_ref<const std::string&>();
}

const Json& list_of(const Json& value) {
  if (!value.is_array()) refuse("expected a list, found {}", shown(value));
  return value;
}

const Json& non_empty(const Json& value) {
  if (list_of(value).empty()) refuse("expected a non-empty list, found an empty one");
  return value;
}

int64_t integer_of(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_string()) {
    const std::string_view digits = python_strip(value.get_ref<const std::string&>());
    int64_t number = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (error == std::errc() && end == digits.data() + digits.size()) return number;
  }
  refuse("expected an integer, found {}", shown(value));
}

// Returns the compiled pattern from a cache, which has one entry for each (pattern, replacement) of the task files.
const PythonSub& compiled(const std::string& pattern, const std::string& replacement) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, std::string>, PythonSub> known;
  const std::lock_guard lock(mutex);
  return known.try_emplace({pattern, replacement}, pattern, replacement).first->second;
}

size_t position(const std::string& text, const std::string& mark) {
  const size_t at = text.find(mark);
  if (at == std::string::npos) refuse("expected text that contains '{}', found {}", mark, shown(Json(text)));
  return at;
}

Json split_text(const std::string& text, const std::string& separator) {
  if (separator.empty()) refuse("split: expected a separator, found none");
  Json parts = Json::array();
  size_t begin = 0;
  for (size_t at; (at = text.find(separator, begin)) != std::string::npos; begin = at + separator.size()) {
    parts.push_back(text.substr(begin, at - begin));
  }
  parts.push_back(text.substr(begin));
  return parts;
}

std::string join_texts(const Json& parts, const std::string& separator) {
  std::string joined;
  for (size_t i = 0; i < parts.size(); ++i) joined += (i ? separator : "") + text_of(parts[i]);
  return joined;
}

Json at_index(const Json& list, int64_t index) {
  if (index < 0 || index >= static_cast<int64_t>(list.size()))
    refuse("expected an index from 0 to {}, found {}", int64_t(list.size()) - 1, index);
  return list[static_cast<size_t>(index)];
}

Json index_in(const Json& value, const Json& list) {
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i] == value) return i;
  }
  refuse("expected one of {}, found {}", shown(list), shown(value));
}

const std::vector<Filter>& filters() {
  using A = const Arguments&;
  static const std::vector<Filter> all = {
      {"strip", 0, true, [](const Json& v, A) -> Json { return std::string(python_strip(text_of(v))); }},
      {"lower", 0, true, [](const Json& v, A) -> Json { return python_lower(text_of(v)); }},
      {"upper", 0, true, [](const Json& v, A) -> Json { return python_upper(text_of(v)); }},
      {"capitalize", 0, true, [](const Json& v, A) -> Json { return python_capitalize(text_of(v)); }},
      {"replace", 2, true,
       [](const Json& v, A a) -> Json { return replace_all(text_of(v), text_of(a[0]), text_of(a[1])); }},
      {"regex_sub", 2, true,
       [](const Json& v, A a) -> Json { return compiled(text_of(a[0]), text_of(a[1]))(text_of(v)); }},
      {"before", 1, true,
       [](const Json& v, A a) -> Json { return text_of(v).substr(0, position(text_of(v), text_of(a[0]))); }},
      {"after", 1, true,
       [](const Json& v, A a) -> Json {
         return text_of(v).substr(position(text_of(v), text_of(a[0])) + text_of(a[0]).size());
       }},
      {"prefix", 1, true, [](const Json& v, A a) -> Json { return text_of(a[0]) + text_of(v); }},
      {"suffix", 1, true, [](const Json& v, A a) -> Json { return text_of(v) + text_of(a[0]); }},
      {"wikitext_detokenize", 0, true, [](const Json& v, A) -> Json { return wikitext_detokenize(text_of(v)); }},
      {"split", 1, true, [](const Json& v, A a) -> Json { return split_text(text_of(v), text_of(a[0])); }},
      {"join", 1, false, [](const Json& v, A a) -> Json { return join_texts(list_of(v), text_of(a[0])); }},
      {"first", 0, false, [](const Json& v, A) -> Json { return non_empty(v).front(); }},
      {"last", 0, false, [](const Json& v, A) -> Json { return non_empty(v).back(); }},
      {"drop_first", 0, false,
       [](const Json& v, A) -> Json { return Json(non_empty(v).begin() + 1, non_empty(v).end()); }},
      {"drop_last", 0, false,
       [](const Json& v, A) -> Json { return Json(non_empty(v).begin(), non_empty(v).end() - 1); }},
      {"at", 1, false, [](const Json& v, A a) -> Json { return at_index(list_of(v), integer_of(a[0])); }},
      {"index", 1, false, [](const Json& v, A a) -> Json { return index_in(v, list_of(a[0])); }},
      {"int", 0, false, [](const Json& v, A) -> Json { return integer_of(v); }},
      {"add", 1, false, [](const Json& v, A a) -> Json { return integer_of(v) + integer_of(a[0]); }},
  };
  return all;
}

}  // namespace

std::string wikitext_detokenize(std::string text) {
  // Contractions and possessives. The pattern of the second rule contains literal slashes and never matches. The rule
  // is kept because it is part of the benchmark's definition.
  text = replace_all(std::move(text), "s '", "s'");
  static const PythonSub slashes("/' [0-9]/", "/'[0-9]/");
  text = slashes(text);
  for (const auto& [from, to] : {std::pair{" @-@ ", "-"},
                                 {" @,@ ", ","},
                                 {" @.@ ", "."},  // this rule and the two rules above it: separators within numbers
                                 {" : ", ": "},
                                 {" ; ", "; "},
                                 {" . ", ". "},
                                 {" ! ", "! "},
                                 {" ? ", "? "},
                                 {" , ", ", "}}) {
    text = replace_all(std::move(text), from, to);
  }
  // Remove the spaces after an opening and before a closing bracket or quotation mark.
  static const PythonSub pairs[] = {{R"(\(\s*([^\)]*?)\s*\))", "($1)"},
                                    {R"(\[\s*([^\]]*?)\s*\])", "[$1]"},
                                    {R"(\{\s*([^}]*?)\s*\})", "{$1}"},
                                    {R"("\s*([^"]*?)\s*")", "\"$1\""},
                                    {R"('\s*([^']*?)\s*')", "'$1'"}};
  for (const PythonSub& pair : pairs) text = pair(text);
  for (const auto& [from, to] : {std::pair{"= = = =", "===="},
                                 {"= = =", "==="},
                                 {"= =", "=="},
                                 {" \u00b0 ", "\u00b0"},
                                 {" \n", "\n"},
                                 {"\n ", "\n"},
                                 {" N ", " 1 "},
                                 {" 's", "'s"}}) {
    text = replace_all(std::move(text), from, to);
  }
  return text;
}

const Filter& find_filter(const std::string& name) {
  for (const Filter& filter : filters()) {
    if (filter.name == name) return filter;
  }
  const std::vector<std::string> names = names_of(filters());
  refuse("filter '{}': expected one of {}{}", name, fmt::join(names, ", "), did_you_mean(name, names));
}

}  // namespace lazy::eval
