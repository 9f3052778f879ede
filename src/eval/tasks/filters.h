// The filters of task templates, with Python's meaning of each:
//
//   strip lower upper capitalize            str's methods
//   replace(a, b)  regex_sub(pattern, b)    str.replace; re.sub with PCRE2's replacement ("$1")
//   before(a) after(a)                      the text before or after the first a; an error without one
//   prefix(a) suffix(a)                     a prepended, a appended
//   wikitext_detokenize                     lm-evaluation-harness's detokenizer for WikiText
//   split(a) join(a)                        text to list and back
//   first last drop_first drop_last at(i)   of a list
//   index(list)                             the position in a list, from 0
//   int add(n)                              text, boolean or number to integer; sum
//
// A filter of texts maps over a list of texts.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "eval/tasks/template.h"

namespace lazy::eval {

struct Filter {
  const char* name;
  size_t arguments;
  bool of_text;  // applied to each text of a list
  std::function<Json(const Json& value, const std::vector<Json>& arguments)> apply;
};

// DocumentError lists the filters and suggests the nearest name.
const Filter& find_filter(const std::string& name);

// The replacements of lm-evaluation-harness's tasks/wikitext/preprocess_wikitext.py, in its order.
std::string wikitext_detokenize(std::string text);

}  // namespace lazy::eval
