#include "eval/wikitext.h"

#include "eval/python_text.h"

namespace lazy::eval {

std::vector<std::string> wikitext_pages(std::string_view raw) {
  std::vector<std::string> pages;
  std::string page;
  bool first_line = true;
  const auto finish = [&] {
    if (!python_strip(page).empty()) pages.push_back(page);
    page.clear();
    first_line = true;
  };
  for (size_t begin = 0;;) {
    const size_t end = std::min(raw.find('\n', begin), raw.size());
    const std::string_view line = raw.substr(begin, end - begin);
    const std::string folded = replace_all(replace_all(std::string(line), "= = =", "==="), "= =", "==");
    const std::string_view heading = python_strip(folded);
    if (heading.starts_with("= ") && heading.ends_with(" =")) finish();
    if (!first_line) page += '\n';
    page += line;
    first_line = false;
    if (end == raw.size()) break;
    begin = end + 1;
  }
  finish();
  return pages;
}

std::string wikitext_detokenize(std::string text) {
  // Contractions. The second rule looks for literal slashes and so never matches; it is the benchmark's.
  text = replace_all(std::move(text), "s '", "s'");
  static const PythonSub inert("/' [0-9]/", "/'[0-9]/");
  text = inert(text);
  for (const auto& [from, to] : {std::pair{" @-@ ", "-"},
                                 {" @,@ ", ","},
                                 {" @.@ ", "."},  // number separators
                                 {" : ", ": "},
                                 {" ; ", "; "},
                                 {" . ", ". "},
                                 {" ! ", "! "},
                                 {" ? ", "? "},
                                 {" , ", ", "}}) {
    text = replace_all(std::move(text), from, to);
  }
  // Pairs of brackets and quotation marks lose the spaces inside.
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

}  // namespace lazy::eval
