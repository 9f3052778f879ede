// Task files of a user's own, and where documents are found.
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
using testing::HasSubstr;

const std::string kHead = "name = \"mine\"\noutput_type = \"multiple_choice\"\nmetrics = [\"acc\"]\n";
const std::string kPrompt = "[prompt]\ncontext = \"{{q}}\"\nchoices = [\"no\", \"yes\"]\nlabel = \"{{l}}\"\n";

std::string wrong(const std::string& toml) {
  return error_of([&] { parse_task(toml, "my.toml"); });
}

TEST(TaskFiles, MistakesNameLineAndKey) {
  EXPECT_EQ(wrong(kHead + kPrompt), "");
  EXPECT_EQ(wrong(kHead + "headlines = \"acc\"\n" + kPrompt),
            "eval: my.toml:4: unknown key headlines; did you mean 'headline'?");
  EXPECT_EQ(wrong(kHead + "[data]\nfile = \"x\"\n" + kPrompt),
            "eval: my.toml:5: unknown key data.file; did you mean 'data.files'?");
  EXPECT_EQ(wrong(kHead + "[data]\nfiles = 3\n" + kPrompt),
            "eval: my.toml:5: data.files: expected text, found integer");
  EXPECT_EQ(wrong(kHead),
            "eval: my.toml: [prompt]: multiple_choice needs label, and either context and choices or contexts and "
            "continuation");
  EXPECT_EQ(wrong("name = \"a\"\n"), "eval: my.toml: output_type: expected a value, found none");
  EXPECT_EQ(wrong("name = \"a b\"\n"), "eval: my.toml:1: name: expected no space and no slash, found 'a b'");
  EXPECT_THAT(wrong("name = \"a\"\noutput_type = \"choice\""),
              HasSubstr("my.toml:2: output_type: expected multiple_choice, loglikelihood or"));
  EXPECT_THAT(wrong("name = \"a\"\noutput_type = \"loglikelihood\"\nmetrics = [\"acc_norm\"]"),
              HasSubstr("my.toml:3: metrics: expected some of perplexity, acc"));
  EXPECT_THAT(wrong(kHead + "headline = \"acc_norm\"\n" + kPrompt),
              EndsWith("headline: expected one of metrics, found 'acc_norm'"));
  EXPECT_THAT(wrong(kHead + "[prompt]\ncontext = \"{{q\"\n"),
              HasSubstr("my.toml:5: prompt.context: template '{{q': expected '}}'"));
  EXPECT_THAT(wrong("name = "), HasSubstr("eval: my.toml:1: "));
  EXPECT_EQ(wrong("name = \"В\"\nВ = 1\n"), "eval: my.toml:2: expected ASCII outside of strings and comments");
}

TEST(TaskFiles, SelectionTakesNamesGroupsAndFiles) {
  EXPECT_EQ(select_tasks({"all"}).size(), 9u);
  const auto arc = select_tasks({"ai2_arc", "piqa", "arc_easy"});
  ASSERT_EQ(arc.size(), 3u);
  EXPECT_EQ(arc[2].name, "piqa");
  EXPECT_THAT(error_of([] { select_tasks({"helaswag"}); }), EndsWith("did you mean 'hellaswag'?"));
  const Folder folder;
  folder.write("piqa.toml", kHead + kPrompt);
  EXPECT_EQ(select_tasks({(folder.path / "piqa.toml").string()})[0].name, "mine");
  folder.write("other.toml", "name = \"piqa\"" + kHead.substr(13) + kPrompt);
  EXPECT_THAT(error_of([&] {
                select_tasks({"piqa", (folder.path / "other.toml").string()});
              }),
              EndsWith("are both called piqa"));
}

Task own_task(const std::string& data) { return parse_task(kHead + "[data]\n" + data + kPrompt, "my.toml"); }

std::vector<std::string> found(const Task& task, const fs::path& data, bool fewshot = false) {
  std::vector<std::string> names;
  for (const fs::path& path : find_task_files(task, data, fewshot))
    names.push_back(path.lexically_relative(data).string());
  return names;
}

TEST(TaskFiles, FoldersAsTheHubLaysThemOut) {
  const Task task = own_task("files = [\"own.jsonl\"]\nhub = [\"who/set:hard\"]\nsplit = \"test\"\n");
  const Folder folder;
  EXPECT_THAT(
      error_of([&] { found(task, folder.path); }),
      EndsWith("task mine needs one of the files own.jsonl, test of who/set:hard (.parquet, .jsonl); found none"));
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
  EXPECT_THAT(error_of([&] { found(task, folder.path / "absent"); }), EndsWith("expected a folder, found nothing"));
  EXPECT_THAT(error_of([&] { found(task, folder.path / "eval/own.jsonl.gz"); }),
              EndsWith("expected a folder, found a file"));
}

TEST(TaskFiles, CompressedParquetAndPlainText) {
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
  EXPECT_THAT(error_of([&] { read_rows(task, folder.path); }), EndsWith("own.jsonl: expected documents, found none"));
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
    GTEST_SKIP() << LAZY_TEST_PYTHON << " does not import pyarrow: Parquet was not read";
  ::setenv("LAZY_PYTHON", LAZY_TEST_PYTHON, 1);
  rows = read_rows(task, folder.path);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_THAT(rows[1].where, EndsWith("validation-0.parquet: row 2"));
  EXPECT_EQ(rows[1].document, Json::parse(row));
}

TEST(TaskFiles, WikitextsRawFile) {
  const Task task = find_task("wikitext");
  const Folder folder;
  EXPECT_THAT(error_of([&] { read_rows(task, folder.path); }),
              HasSubstr("task wikitext needs one of the files wikitext-2-raw-test.txt, "));
  folder.write("wiki.test.raw", " = A = \n caf\xe9 \n");
  EXPECT_THAT(error_of([&] { read_rows(task, folder.path); }),
              EndsWith("expected UTF-8, found an invalid sequence at byte 12"));
  folder.write("wiki.test.raw", " \n");
  EXPECT_THAT(error_of([&] { read_rows(task, folder.path); }), EndsWith("expected documents, found none"));
  folder.write("wiki.test.raw", " = A = \n one \n = B = \n two \n");
  EXPECT_EQ(read_rows(task, folder.path).size(), 2u);
}

// docs/evaluation.md's task of one's own does what the page says.
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
