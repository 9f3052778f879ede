#include "eval/tasks/documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/file.h"
#include "eval/python.h"
#include "eval/tasks/filters.h"
#include "eval/tasks/prompt.h"
#include "harness.h"
#include "support/test_data.h"

namespace lazy::eval {
namespace fs = std::filesystem;

TEST(Wikitext, Page_StartsAtTopLevelHeading) {
  const std::string raw =
      " \n = One = \n \n text = with equals \n = = Section = = \n body \n = = = Sub = = = \n\n = Two = \n more \n";
  const auto pages = wikitext_pages(raw);
  ASSERT_EQ(pages.size(), 2u);
  EXPECT_EQ(pages[0], " = One = \n \n text = with equals \n = = Section = = \n body \n = = = Sub = = = \n");
  EXPECT_EQ(pages[1], " = Two = \n more \n");
  EXPECT_TRUE(wikitext_pages(" \n \n").empty());
  EXPECT_EQ(wikitext_pages("no heading").size(), 1u);
}

TEST(Wikitext, Detokenize_AppliesRules) {
  const auto d = wikitext_detokenize;
  EXPECT_EQ(d("the boys ' game"), "the boys' game");
  EXPECT_EQ(d("10 @,@ 000 @.@ 5 well @-@ known"), "10,000.5 well-known");
  EXPECT_EQ(d("a : b ; c . d ! e ? f , g"), "a: b; c. d! e? f, g");
  EXPECT_EQ(d("( one ) [ two ] { three } \" four \" ' five '"), "(one) [two] {three} \"four\" 'five'");
  EXPECT_EQ(d("= = = = Deep = = = ="), "==== Deep ====");
  EXPECT_EQ(d("= = Two = = \n next"), "== Two ==\nnext");
  EXPECT_EQ(d("45 \u00b0 N of"), "45\u00b0N of");
  EXPECT_EQ(d("at N 5"), "at 1 5");
  EXPECT_EQ(d("Teddy 's Story"), "Teddy's Story");
  EXPECT_EQ(d("( open"), "( open");
  EXPECT_EQ(d("(\u00a0x\u3000)"), "(x)");  // as in Python, \s matches Unicode spaces
  EXPECT_EQ(d(""), "");
}

TEST(PythonText, WordCount_IncludesEmptyStringsAtEdges) {
  EXPECT_EQ(python_word_count("a b"), 2);
  EXPECT_EQ(python_word_count(" a  b \n"), 4);
  EXPECT_EQ(python_word_count(""), 1);
  EXPECT_EQ(python_word_count("a\u00a0b\u2003c\x1f"
                              "d"),
            4);
  EXPECT_EQ(python_word_count("a\u200bb"), 1);  // a zero-width space does not separate words
  EXPECT_EQ(python_strip("\u3000 a b\u0085"), "a b");
  EXPECT_EQ(python_strip(" \n"), "");
}

TEST(WikitextData, TestSet_MatchesHarness) {
  LAZY_NEEDS_HARNESS();
  const std::string file = test_data("eval/wikitext-2-raw-test.txt");
  if (file.empty()) GTEST_SKIP() << "LAZY_TEST_DATA does not name a folder that contains eval/wikitext-2-raw-test.txt";
  const std::string raw = read_file(file);
  const auto pages = wikitext_pages(raw);
  EXPECT_EQ(pages.size(), 62u);
  nlohmann::json input = pages;
  const auto expected = harness_output(R"(
import json, sys
from lm_eval.tasks.wikitext.preprocess_wikitext import wikitext_detokenizer, process_results
pages = json.load(open(sys.argv[2], encoding='utf-8'))
out = []
for page in pages:
    counts = process_results({'page': page}, (0.0,))
    out.append([wikitext_detokenizer({'page': page}), counts['word_perplexity'][1], counts['byte_perplexity'][1]])
json.dump(out, open(sys.argv[1], 'w'))
)",
                                       input.dump());
  const Task task = find_task("wikitext");
  const auto rows = read_rows(task, test_data("."));
  ASSERT_EQ(rows.size(), expected.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const Question question = make_question(task, rows[i], "");
    EXPECT_EQ(question.text, expected[i][0].get<std::string>()) << i;
    EXPECT_EQ(question.words, expected[i][1].get<int64_t>()) << i;
    EXPECT_EQ(question.bytes, expected[i][2].get<int64_t>()) << i;
  }
}

}  // namespace lazy::eval
