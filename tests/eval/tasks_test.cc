// Checks the exact text that the model receives in the nine tasks, for hand-written rows.
#include "eval/tasks/task.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "eval/tasks/prompt.h"
#include "folder.h"
#include "support/error_of.h"

namespace lazy::eval {

// Returns the question of one row, which is read from the first file of the task.
Question asked(const std::string& task_name, const std::string& row) {
  const Task task = find_task(task_name);
  const Folder folder;
  folder.write(task.data.files.back(), row + "\n");
  return make_question(task, read_rows(task, folder.path)[0], "");
}

std::string refusal(const std::string& task, const std::string& row) {
  return error_of([&] { asked(task, row); });
}

void expect_pairs(const Question& question, const std::vector<std::pair<std::string, std::string>>& pairs) {
  ASSERT_EQ(question.pairs.size(), pairs.size());
  for (size_t i = 0; i < pairs.size(); ++i) {
    EXPECT_EQ(question.pairs[i].context, pairs[i].first);
    EXPECT_EQ(question.pairs[i].continuation, pairs[i].second);
  }
}

TEST(Tasks, Piqa_BuildsQuestion) {
  const Question q = asked("piqa", R"({"goal": "To dry a cup,", "sol1": "wipe it.", "sol2": "wet it.", "label": 1})");
  expect_pairs(q,
               {{"Question: To dry a cup,\nAnswer:", " wipe it."}, {"Question: To dry a cup,\nAnswer:", " wet it."}});
  EXPECT_EQ(q.choices, (std::vector<std::string>{"wipe it.", "wet it."}));
  EXPECT_EQ(q.label, 1);
  EXPECT_EQ(q.target, "1");
}

TEST(Tasks, Hellaswag_AcceptsHubColumnsAndPreparedRows) {
  const Question q = asked(
      "hellaswag", nlohmann::json::parse(
                       R"({"activity_label": " Making tea", "ctx_a": "[header] How to make tea [title] Boil water.",
      "ctx_b": "she POURS  it", "endings": [" [step] out [title] now", "in", "up.", "down"], "label": "2"})")
                       .dump());
  EXPECT_EQ(q.pairs[0].context, "Making tea: How to make tea. Boil water. She pours it");
  EXPECT_EQ(q.choices, (std::vector<std::string>{" out. now", "in", "up.", "down"}));
  EXPECT_EQ(q.pairs[0].continuation, "  out. now");
  EXPECT_EQ(q.label, 2);
  const Question prepared =
      asked("hellaswag", R"({"idx": 4, "query": " Tea: [step] He  sits ", "choices": ["a [x]b", "c"], "gold": 0})");
  EXPECT_EQ(prepared.pairs[0].context, "Tea: He sits");
  EXPECT_EQ(prepared.choices, (std::vector<std::string>{"a b", "c"}));
  EXPECT_EQ(prepared.label, 0);
}

TEST(Tasks, Winogrande_HasTwoContexts) {
  const Question q = asked(
      "winogrande",
      R"({"sentence": "Ann thanked Bo because _ had helped. ", "option1": "Ann", "option2": "Bo", "answer": "2"})");
  expect_pairs(q, {{"Ann thanked Bo because Ann", " had helped."}, {"Ann thanked Bo because Bo", " had helped."}});
  EXPECT_EQ(q.label, 1);
  EXPECT_EQ(q.target, "had helped.");
}

TEST(Tasks, Arc_AcceptsLettersAndDigits) {
  for (const char* name : {"arc_easy", "arc_challenge"}) {
    const Question q =
        asked(name, R"({"id": "x", "question": "What falls?", "choices": {"text": ["rain", "sun", "sky"], )"
                    R"("label": ["1", "2", "3"]}, "answerKey": "1"})");
    expect_pairs(q, {{"Question: What falls?\nAnswer:", " rain"},
                     {"Question: What falls?\nAnswer:", " sun"},
                     {"Question: What falls?\nAnswer:", " sky"}});
    EXPECT_EQ(q.label, 0);
  }
  EXPECT_EQ(
      asked("arc_easy", R"({"question": "Q", "choices": {"text": ["r", "s"], "label": ["A", "B"]}, "answerKey": "B"})")
          .label,
      1);
}

TEST(Tasks, SocialIqaAndBoolq_BuildQuestions) {
  const Question q = asked("social_iqa", R"({"context": "Al fell.", "question": "Why?", )"
                                         R"("answerA": "ice", "answerB": "fun", "answerC": "no", "label": "3"})");
  expect_pairs(q,
               {{"Q: Al fell. Why?\nA:", " ice"}, {"Q: Al fell. Why?\nA:", " fun"}, {"Q: Al fell. Why?\nA:", " no"}});
  EXPECT_EQ(q.label, 2);
  const Question b = asked("boolq", R"({"question": "is it so", "passage": "It is.", "answer": true})");
  expect_pairs(b, {{"It is.\nQuestion: is it so?\nAnswer:", " no"}, {"It is.\nQuestion: is it so?\nAnswer:", " yes"}});
  EXPECT_EQ(b.label, 1);
  EXPECT_EQ(asked("boolq", R"({"question": "is it so", "passage": "It is.", "idx": 3, "label": 0})").label, 0);
}

TEST(Tasks, LambadaAndWikitext_BuildTexts) {
  const Question q = asked("lambada_openai", R"({"text": "He said:  \"Go\" and\nleft home."})");
  expect_pairs(q, {{"He said:  \"Go\" and\nleft", " home."}});
  EXPECT_EQ(q.target, " home.");
  expect_pairs(asked("lambada_openai", R"({"text": "word"})"), {{"", " word"}});
  const Question page = asked("wikitext", R"({"page": " = A = \n x @-@ y "})");
  EXPECT_EQ(page.text, " = A =\nx-y ");
  EXPECT_EQ(page.words, 8);
  EXPECT_EQ(page.bytes, 17);
}

TEST(Tasks, InvalidRow_ErrorNamesLineAndField) {
  const std::string piqa = R"({"goal": "g", "sol1": "a", "sol2": "b", "label": %})";
  const auto with = [&](const std::string& label) {
    return refusal("piqa", std::string(piqa).replace(piqa.find('%'), 1, label));
  };
  EXPECT_THAT(with("2"), Names({"piqa.jsonl:1", "{{label}}", 0, 1, 2}));
  // the data sets on the Hub use -1 for labels that are not published
  EXPECT_THAT(with("-1"), Names({"piqa.jsonl:1", "{{label}}", -1}));
  EXPECT_THAT(with("\"\""), Names({"piqa.jsonl:1", "{{label}}", "\"\""}));
  EXPECT_EQ(with("\"b\""), "");  // a label may also be the text of the correct choice
  EXPECT_EQ(with("true"), "");
  EXPECT_THAT(with("null"), Names({"piqa.jsonl:1", "{{label}}", "null"}));
  EXPECT_EQ(refusal("piqa", R"({"goal": "g", "sol1": "a", "sol2": 7, "label": 0})"), "");
  EXPECT_THAT(refusal("piqa", R"({"goal": "g", "sol1": "a", "label": 0})"),
              Names({"piqa.jsonl:1", "sol2", "goal", "sol1", "label"}));
  EXPECT_THAT(refusal("piqa", R"({"goal": null, "sol1": "a", "sol2": "b", "label": 0})"),
              Names({"piqa.jsonl:1", "goal", "null"}));
  EXPECT_THAT(refusal("arc_easy", R"({"question": "Q", "choices": {"text": ["r"], "label": ["A"]}, "answerKey": "E"})"),
              Names({"arc_easy.jsonl:1", "answerKey", "[\"A\"]", "\"E\""}));
  EXPECT_THAT(refusal("arc_easy", R"({"question": "Q", "choices": {"text": "r", "label": ["A"]}, "answerKey": "A"})"),
              Names({"arc_easy.jsonl:1", "choices.text", "\"r\""}));
  EXPECT_THAT(refusal("winogrande", R"({"sentence": "none", "option1": "a", "option2": "b", "answer": "1"})"),
              Names({"winogrande.jsonl:1", "sentence", "'_'", "\"none\""}));
  EXPECT_THAT(
      refusal("social_iqa",
              R"({"context": "c", "question": "q", "answerA": "a", "answerB": "b", "answerC": "c", "label": "4"})"),
      Names({"social_iqa.jsonl:1", "label", 0, 2, 3}));
  EXPECT_THAT(refusal("hellaswag", R"({"query": "q", "choices": ["a"]})"),
              Names({"hellaswag.jsonl:1", "label", "query", "choices"}));
  EXPECT_THAT(refusal("piqa", "{\"goal\": \"caf\xe9\"}"), Names({"piqa.jsonl:1", "JSON"}));
  EXPECT_THAT(refusal("piqa", "[1]"), Names({"piqa.jsonl:1", "JSON", "[1]"}));
  EXPECT_THAT(refusal("piqa", "\n\n{\"goal\": "), Names({"piqa.jsonl:3", "JSON"}));
}

}  // namespace lazy::eval
