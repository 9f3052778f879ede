// The filters of task templates, with Python's meaning of each:
//
//   strip lower upper capitalize            str's methods
//   replace(a, b)  regex_sub(pattern, b)    str.replace; re.sub with PCRE2's replacement ("$1")
//   before(a) after(a)                      around the first a, which must be there
//   prefix(a) suffix(a)                     a before it, a after it
//   wikitext_detokenize                     WikiText's own replacement list
//   split(a) join(a)                        text to list and back
//   first last drop_first drop_last at(i)   of a list
//   index(list)                             the position in a list, from 0
//   int add(n)                              text, truth value or number to integer; sums
//
// Those of texts, given a list, do the same to each of its texts.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "eval/python_text.h"
#include "eval/tasks/template.h"

namespace lazy::eval {

struct Filter {
  const char* name;
  size_t arguments;
  bool of_text;  // applied to each text of a list
  std::function<Json(const Json& value, const std::vector<Json>& arguments)> apply;
};

// DocumentError lists what there is and suggests the nearest.
const Filter& find_filter(const std::string& name);

}  // namespace lazy::eval
