// The filters of task templates. They behave as in Python:
//
//   strip lower upper capitalize            methods of str
//   replace(a, b)  regex_sub(pattern, b)    str.replace; re.sub with the replacement syntax of PCRE2 ("$1")
//   before(a) after(a)                      the text before or after the first a; an error if a does not occur
//   prefix(a) suffix(a)                     prepends a; appends a
//   wikitext_detokenize                     the WikiText detokenizer of lm-evaluation-harness
//   split(a) join(a)                        converts text to a list and back
//   first last drop_first drop_last at(i)   elements or parts of a list
//   index(list)                             the 0-based position of the value in a list
//   int add(n)                              converts text, boolean or number to an integer; adds n
//
// A text filter that is applied to a list is applied to each text of the list.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "eval/tasks/template.h"

namespace lazy::eval {

struct Filter {
  const char* name;
  size_t arguments;
  bool of_text;  // true: a list is filtered text by text; false: the filter receives the whole list
  std::function<Json(const Json& value, const std::vector<Json>& arguments)> apply;
};

// Returns the filter with this name. Throws a DocumentError that lists all filters and suggests the closest name.
const Filter& find_filter(const std::string& name);

// Applies the replacements of tasks/wikitext/preprocess_wikitext.py of lm-evaluation-harness in the same order.
std::string wikitext_detokenize(std::string text);

}  // namespace lazy::eval
