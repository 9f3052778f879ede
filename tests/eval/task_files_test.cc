// Tests task files that users write, and the search for the files that contain a task's documents.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "eval/tasks/documents.h"
#include "eval/tasks/prompt.h"
#include "folder.h"
#include "support/error_of.h"

namespace lazy::eval {
namespace fs = std::filesystem;
using testing::EndsWith;

const std::string kHead = "name = \"mine\"\noutput_type = \"multiple_choice\"\nmetrics = [\"acc\"]\n";
const std::string kPrompt = "[prompt]\ncontext = \"{{q}}\"\nchoices = [\"no\", \"yes\"]\nlabel = \"{{l}}\"\n";

std::string wrong(const std::string& toml) {
  return error_of([&] { parse_task(toml, "my.toml"); });
}

TEST(TaskFiles, InvalidTaskFile_ErrorNamesLineAndKey) {
  EXPECT_EQ(wrong(kHead + kPrompt), "");
  EXPECT_THAT(wrong(kHead + "headlines = \"acc\"\n" + kPrompt),
              IsMessage("eval: my.toml:4: unknown key headlines; did you mean 'headline'?"));
  EXPECT_THAT(wrong(kHead + "[data]\nfile = \"x\"\n" + kPrompt), Names({"my.toml:5", "data.file", "data.files"}));
  EXPECT_THAT(wrong(kHead + "[data]\nfiles = 3\n" + kPrompt),
              IsMessage("eval: my.toml:5: data.files: expected text, found integer"));
  EXPECT_THAT(wrong(kHead), Names({"my.toml", "[prompt]", "multiple_choice", "label", "context", "choices", "contexts",
                                   "continuation"}));
  EXPECT_THAT(wrong("name = \"a\"\n"), Names({"my.toml", "output_type"}));
  EXPECT_THAT(wrong("name = \"a b\"\n"), Names({"my.toml:1", "name", std::string("a b")}));
  EXPECT_THAT(
      wrong("name = \"a\"\noutput_type = \"choice\""),
      Names({"my.toml:2", "output_type", "multiple_choice", "loglikelihood", "loglikelihood_rolling", "choice"}));
  EXPECT_THAT(wrong("name = \"a\"\noutput_type = \"loglikelihood\"\nmetrics = [\"acc_norm\"]"),
              Names({"my.toml:3", "metrics", "perplexity", "acc", "acc_norm"}));
  EXPECT_THAT(wrong(kHead + "headline = \"acc_norm\"\n" + kPrompt),
              Names({"my.toml:4", "headline", "metrics", "acc_norm"}));
  EXPECT_THAT(wrong(kHead + "[prompt]\ncontext = \"{{q\"\n"), Names({"my.toml:5", "prompt.context", "{{q", "}}"}));
  EXPECT_THAT(wrong("name = "), Names({"my.toml:1"}));
  EXPECT_THAT(wrong("name = \"В\"\nВ = 1\n"), Names({"my.toml:2"}));
}

TEST(TaskFiles, Selection_AcceptsNamesGroupsAndFiles) {
  EXPECT_EQ(select_tasks({"all"}).size(), builtin_tasks().size());
  const auto arc = select_tasks({"ai2_arc", "piqa", "arc_easy"});
  ASSERT_EQ(arc.size(), 3u);
  EXPECT_EQ(arc[2].name, "piqa");
  EXPECT_THAT(error_of([] { select_tasks({"helaswag"}); }), Names({"'helaswag'", "'hellaswag'"}));
  const Folder folder;
  folder.write("piqa.toml", kHead + kPrompt);
  EXPECT_EQ(select_tasks({(folder.path / "piqa.toml").string()})[0].name, "mine");
  folder.write("other.toml", "name = \"piqa\"" + kHead.substr(13) + kPrompt);
  EXPECT_THAT(error_of([&] {
                select_tasks({"piqa", (folder.path / "other.toml").string()});
              }),
              Names({"--tasks", "piqa", (folder.path / "other.toml").string()}));
}

Task own_task(const std::string& data) { return parse_task(kHead + "[data]\n" + data + kPrompt, "my.toml"); }

std::vector<std::string> found(const Task& task, const fs::path& data, bool fewshot = false) {
  std::vector<std::string> names;
  for (const fs::path& path : find_task_files(task, data, fewshot))
    names.push_back(path.lexically_relative(data).string());
  return names;
}

TEST(TaskFiles, HubFolderLayouts_AreFound) {
  const Task task = own_task("files = [\"own.jsonl\"]\nhub = [\"who/set:hard\"]\nsplit = \"test\"\n");
  const Folder folder;
  EXPECT_THAT(error_of([&] { found(task, folder.path); }),
              Names({folder.path.string(), "mine", "own.jsonl", "test", "who/set:hard", ".parquet", ".jsonl"}));
  for (const char* name :
       {"easy/test-00000-of-00001.parquet", "hard/train-00000-of-00001.parquet", "hard/test-00001-of-00002.parquet",
        "hard/test-00000-of-00002.parquet", "hard/testing.parquet", "hard/test.jsonl"}) {
    folder.write(std::string("set/") + name, "");
  }
  EXPECT_EQ(found(task, folder.path),
            (std::vector<std::string>{"set/hard/test-00000-of-00002.parquet", "set/hard/test-00001-of-00002.parquet"}));
  EXPECT_EQ(found(task, folder.path, true), (std::vector<std::string>{"set/hard/train-00000-of-00001.parquet"}));
  folder.write("who/set/hard/test/0000.parquet", "");
  EXPECT_EQ(found(task, folder.path), (std::vector<std::string>{"who/set/hard/test/0000.parquet"}));
  folder.write("eval/own.jsonl.gz", "");
  EXPECT_EQ(found(task, folder.path), (std::vector<std::string>{"eval/own.jsonl.gz"}));
  const fs::path absent = folder.path / "absent", file = folder.path / "eval/own.jsonl.gz";
  EXPECT_THAT(error_of([&] { found(task, absent); }),
              IsMessage("eval: --data " + absent.string() + ": expected a folder, found nothing"));
  EXPECT_THAT(error_of([&] { found(task, file); }), Names({"--data", file.string()}));
}

TEST(TaskFiles, GzipParquetAndPlainText_AreRead) {
  const Task task = own_task("files = [\"own.jsonl\"]\nhub = [\"who/set\"]\nplain_text = \"lines\"\n");
  const Folder folder;
  const std::string row = R"({"q": "Größe?", "l": 1, "list": {"text": ["a", "b"]}})";
  folder.write("plain", row + "\n\n" + row + "\n");
  ASSERT_EQ(std::system(fmt::format("gzip -c '{0}/plain' > '{0}/own.jsonl.gz'", folder.path.string()).c_str()), 0);
  auto rows = read_rows(task, folder.path);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_THAT(rows[1].where, EndsWith("own.jsonl.gz:3"));
  EXPECT_EQ(rows[1].document, Json::parse(row));
  fs::remove(folder.path / "own.jsonl.gz");
  folder.write("own.jsonl", " \n");
  EXPECT_THAT(error_of([&] { read_rows(task, folder.path); }), Names({(folder.path / "own.jsonl").string()}));
  fs::remove(folder.path / "own.jsonl");

  const std::string script =
      "import pyarrow as pa, pyarrow.parquet as pq, sys, json\n"
      "pq.write_table(pa.Table.from_pylist([json.loads(l) for l in open(sys.argv[1]) if l.strip()]), sys.argv[2])\n";
  folder.write("script.py", script);
  fs::create_directories(folder.path / "set");
  const std::string command =
      fmt::format("'{0}' '{1}/script.py' '{1}/plain' '{1}/set/validation-0.parquet' 2> /dev/null", LAZY_TEST_PYTHON,
                  folder.path.string());
  if (std::system(command.c_str()) != 0)
    GTEST_SKIP() << LAZY_TEST_PYTHON << " cannot import pyarrow: Parquet was not tested";
  ::setenv("LAZY_PYTHON", LAZY_TEST_PYTHON, 1);
  rows = read_rows(task, folder.path);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_THAT(rows[1].where, Names({"validation-0.parquet", 2}));
  EXPECT_EQ(rows[1].document, Json::parse(row));
}

TEST(TaskFiles, WikitextRawFile_IsRead) {
  const Task task = find_task("wikitext");
  const Folder folder;
  EXPECT_THAT(error_of([&] { read_rows(task, folder.path); }),
              Names({"wikitext", "wikitext-2-raw-test.txt", "wikitext.jsonl"}));
  folder.write("wiki.test.raw", " = A = \n caf\xe9 \n");
  EXPECT_THAT(error_of([&] { read_rows(task, folder.path); }), Names({"wiki.test.raw", "UTF-8", 12}));
  folder.write("wiki.test.raw", " \n");
  EXPECT_THAT(error_of([&] { read_rows(task, folder.path); }), Names({(folder.path / "wiki.test.raw").string()}));
  folder.write("wiki.test.raw", " = A = \n one \n = B = \n two \n");
  EXPECT_EQ(read_rows(task, folder.path).size(), 2u);
}

// Returns the first code block in `language` after `text`.
std::string block(const std::string& page, const std::string& text, const std::string& language) {
  const std::string open = "```" + language + "\n";
  const size_t begin = page.find(open, page.find(text)) + open.size();
  return page.substr(begin, page.find("```", begin) - begin);
}

// The example of a task file in docs/guides/evaluation.md must work as the page describes.
TEST(DocsExample, CustomTask_WorksAsDocumented) {
  const std::string page = read_file(std::filesystem::path(LAZY_SOURCE_DIR) / "docs/guides/evaluation.md"),
                    example = "`sky.toml`";
  const Folder folder;
  folder.write("sky.toml", block(page, example, "toml"));
  folder.write("sky.jsonl", block(page, example, "json"));
  const Task task = find_task((folder.path / "sky.toml").string());
  const auto rows = read_rows(task, folder.path);
  ASSERT_EQ(rows.size(), 2u);
  const Question first = make_question(task, rows[0], "");
  EXPECT_EQ(first.pairs[0].context + "\n", block(page, example, "text"));
  EXPECT_EQ(first.pairs[0].continuation, " black");
  EXPECT_EQ(first.pairs[1].continuation, " green");
  EXPECT_EQ(first.label, 0);
  EXPECT_EQ(make_question(task, rows[1], "").label, 1);
  EXPECT_EQ(make_example(task, rows[1]), "Grass is green\n\n");
  EXPECT_EQ(task.data.fewshot_split, task.data.split);
}

// The list in docs/guides/evaluation.md has an entry for every built-in task.
TEST(DocsExample, Table_ContainsEveryTask) {
  const std::string page = read_file(std::filesystem::path(LAZY_SOURCE_DIR) / "docs/guides/evaluation.md");
  for (const Task& task : builtin_tasks()) EXPECT_NE(page.find("`" + task.name + "`"), std::string::npos) << task.name;
}

}  // namespace lazy::eval
