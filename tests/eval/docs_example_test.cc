// docs/evaluation.md's task of one's own does what the page says.
#include <gtest/gtest.h>

#include "eval/tasks/fewshot.h"
#include "eval/tasks/question.h"
#include "folder.h"

namespace lazy::eval {

// The first block of that language behind a line.
std::string block(const std::string& page, const std::string& behind, const std::string& language) {
  const std::string open = "```" + language + "\n";
  const size_t begin = page.find(open, page.find(behind)) + open.size();
  return page.substr(begin, page.find("```", begin) - begin);
}

TEST(DocsExample, TaskOfOnesOwn) {
  const std::string page = read_file(std::filesystem::path(LAZY_SOURCE_DIR) / "docs/evaluation.md"),
                    heading = "## A task of one's own";
  const Folder folder;
  folder.write("sky.toml", block(page, heading, "toml"));
  folder.write("sky.jsonl", block(page, heading, "json"));
  const Task task = find_task((folder.path / "sky.toml").string());
  const auto rows = read_rows(task, folder.path);
  ASSERT_EQ(rows.size(), 2u);
  const Question first = make_question(task, rows[0], "");
  EXPECT_EQ(first.pairs[0].context + "\n", block(page, heading, "text"));
  EXPECT_EQ(first.pairs[0].continuation, " black");
  EXPECT_EQ(first.pairs[1].continuation, " green");
  EXPECT_EQ(first.label, 0);
  EXPECT_EQ(make_question(task, rows[1], "").label, 1);
  EXPECT_EQ(make_example(task, rows[1]), "Grass is green\n\n");
  EXPECT_EQ(task.data.fewshot_split, task.data.split);
}

// Every task that is built in has its row in the table.
TEST(DocsExample, TableNamesEveryTask) {
  const std::string page = read_file(std::filesystem::path(LAZY_SOURCE_DIR) / "docs/evaluation.md");
  for (const Task& task : builtin_tasks()) EXPECT_NE(page.find("`" + task.name + "`"), std::string::npos) << task.name;
}

}  // namespace lazy::eval
