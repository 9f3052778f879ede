#include "eval/tasks/template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "eval/python.h"
#include "eval/tasks/filters.h"
#include "harness.h"
#include "support/error_of.h"

namespace lazy::eval {

const Json kDocument =
    Json::parse(R"({"goal": " Boil eggs ", "n": 3, "yes": true, "nothing": null, "sentence": "Ann met Bo so _ smiled. ",
                    "choices": {"text": ["one", "two"], "label": ["A", "B"]}, "key": "B",
                    "tags": ["x [title] y", "a  b"]})");

std::string rendered(const std::string& source) {
  return Template(source).text({kDocument, {{"alias", {"absent", "key"}}}});
}

std::string problem(const std::string& source) {
  try {
    const Template parsed(source);
    parsed.value({kDocument, {}});
  } catch (const DocumentError& error) {
    return error.what();
  }
  return "none";
}

TEST(Template, Render_AcceptsFieldsTextsNumbersAndLists) {
  EXPECT_EQ(rendered("Question: {{goal}}\nAnswer:"), "Question:  Boil eggs \nAnswer:");
  EXPECT_EQ(rendered("{{n}}{{\" 'a' \"}}{{'\\n'}}"), "3 'a' \n");
  EXPECT_EQ(rendered("no insertion } { }"), "no insertion } { }");
  EXPECT_EQ(rendered("{{alias}}"), "B");
  EXPECT_EQ(Template("{{choices.text}}").texts({kDocument, {}}), (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(Template("{{[key, 'c', n]}}").texts({kDocument, {}}), (std::vector<std::string>{"B", "c", "3"}));
  EXPECT_EQ(Template("{{n}}").value({kDocument, {}}), Json(3));
  EXPECT_TRUE(Template("{{[key, n | add(2)]}}").applies({kDocument, {}}));
  EXPECT_FALSE(Template("{{[key, choices.more]}}").applies({kDocument, {}}));
  EXPECT_FALSE(Template("{{key | prefix(absent)}}").applies({kDocument, {}}));
}

TEST(Template, Filters_TransformValues) {
  EXPECT_EQ(rendered("{{goal | strip | lower | replace('eggs', 'rice')}}"), "boil rice");
  EXPECT_EQ(rendered("{{goal|upper}}"), " BOIL EGGS ");
  EXPECT_EQ(rendered("{{sentence | before('_') | suffix('Ann')}}{{sentence | after('_') | strip}}"),
            "Ann met Bo so Annsmiled.");
  EXPECT_EQ(Template("{{tags | replace(' [title]', '. ') | replace('  ', ' ')}}").texts({kDocument, {}}),
            (std::vector<std::string>{"x. y", "a b"}));
  EXPECT_EQ(rendered("{{'a [b] [c] d' | regex_sub('\\[.*?\\]', '')}}"), "a   d");
  EXPECT_EQ(rendered("{{'2-1' | regex_sub('(\\d)-(\\d)', '$2+$1')}}"), "1+2");
  EXPECT_EQ(rendered("{{'a b c' | split(' ') | drop_last | join(' ')}}|{{'a b c' | split(' ') | last}}"), "a b|c");
  EXPECT_EQ(rendered("{{'abc' | split(' ') | drop_last | join(' ')}}|{{'a  c' | split(' ') | drop_first | join('-')}}"),
            "|-c");
  EXPECT_EQ(rendered("{{choices.text | at(1)}}{{choices.text | first}}"), "twoone");
  EXPECT_EQ(Template("{{key | index(choices.label)}}").value({kDocument, {}}), Json(1));
  EXPECT_EQ(Template("{{yes | int}}").value({kDocument, {}}), Json(1));
  EXPECT_EQ(Template("{{' 12 ' | add(-1)}}").value({kDocument, {}}), Json(11));
  EXPECT_EQ(rendered("{{[['a', 'b'] | join('-'), 'c'] | join(': ')}}"), "a-b: c");
}

TEST(Template, InvalidTemplate_ErrorNamesLocation) {
  EXPECT_THAT(problem("{{gaol}}"),
              IsMessage("field gaol: expected a value, found none (the document has goal, n, yes, nothing, sentence, "
                        "choices, key, tags)"));
  EXPECT_THAT(problem("{{n | strip}}"), Names({"n", 3}));
  EXPECT_THAT(problem("a {{choices.text}}"), Names({"choices.text", "[\"one\",\"two\"]"}));
  EXPECT_THAT(problem("a {{nothing}}"), Names({"nothing", "null"}));
  EXPECT_THAT(problem("{{goal | before('#')}}"), Names({"goal", "'#'", std::string("\" Boil eggs \"")}));
  EXPECT_THAT(problem("{{key | index(choices.text)}}"), Names({"key", "[\"one\",\"two\"]", "\"B\""}));
  EXPECT_THAT(problem("{{goal | int}}"), Names({"goal", std::string("\" Boil eggs \"")}));
  EXPECT_THAT(problem("{{choices.text | at(2)}}"), Names({"choices.text", 0, 1, 2}));
  EXPECT_THAT(problem("{{goal | stripe}}"), Names({"'stripe'", "'strip'"}));
  EXPECT_THAT(problem("{{goal | replace('a')}}"), Names({std::string("{{goal | replace('a')}}"), "replace", 2, 1}));
  EXPECT_THAT(problem("{{goal"), Names({"{{goal", "'}}'", 7}));
  EXPECT_THAT(problem("{{}}"), Names({"{{}}", 3}));
  EXPECT_THAT(problem("{{'abc}}"), Names({"{{'abc}}", 9}));
}

TEST(PythonText, CaseAndLength_MatchPython) {
  EXPECT_EQ(python_capitalize("he LLO wORLD"), "He llo world");
  EXPECT_EQ(python_capitalize("éCOLE\nÀ"), "École\nà");
  EXPECT_EQ(python_capitalize(""), "");
  EXPECT_EQ(python_length("né€𝄞"), 4);
  EXPECT_EQ(python_rstrip(" a\u00a0\n "), " a");
  // Covers all letters of the Latin, Greek, Cyrillic and Armenian blocks whose lower case and upper case are single
  // characters in Python.
  const auto python = python_output(R"(
import json, sys
cases = [c for c in map(chr, range(0x20, 0x587)) if len(c.lower()) == len(c.upper()) == 1]
json.dump([[c, c.lower(), c.upper()] for c in cases], open(sys.argv[1], 'w'))
)");
  for (const auto& one : python) {
    EXPECT_EQ(python_lower(one[0]), one[1].get<std::string>());
    EXPECT_EQ(python_upper(one[0]), one[2].get<std::string>());
  }
}

}  // namespace lazy::eval
