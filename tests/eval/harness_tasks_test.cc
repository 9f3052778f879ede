// For the same rows, compares every string that the model receives with the string that the task code of
// lm-evaluation-harness builds.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <sstream>

#include "eval/tasks/documents.h"
#include "eval/tasks/prompt.h"
#include "folder.h"
#include "harness.h"
#include "support/test_data.h"

namespace lazy::eval {
namespace fs = std::filesystem;

// Python code. Passes rows to the task definitions of the harness, which would otherwise load them from the Hugging
// Face Hub. Writes the texts of each request, each label and the hashes of the samples.
const char* const kAskHarness = R"(
import json, os, sys
os.environ['HF_HUB_OFFLINE'] = os.environ['HF_DATASETS_OFFLINE'] = '1'
os.environ['LOGLEVEL'] = 'ERROR'
from pathlib import Path
import datasets, lm_eval.tasks, lm_eval.utils
job = json.load(open(sys.argv[2], encoding='utf-8'))
SETS = {'baber/piqa': 'piqa', 'Rowan/hellaswag': 'hellaswag', 'allenai/winogrande': 'winogrande', )"
                                R"('lighteval/siqa': 'social_iqa',
        'aps/super_glue': 'boolq', 'EleutherAI/lambada_openai': 'lambada_openai', 'ARC-Easy': 'arc_easy', )"
                                R"('ARC-Challenge': 'arc_challenge'}
SPLIT = {'arc_easy': 'test', 'arc_challenge': 'test', 'lambada_openai': 'test'}
def load_dataset(path, name=None, **_):
    task = SETS[name if path == 'allenai/ai2_arc' else path]
    rows, train = job['tasks'][task]['rows'], job['tasks'][task]['train']
    sets = {SPLIT.get(task, 'validation'): datasets.Dataset.from_list(rows)}
    if train: sets['train'] = datasets.Dataset.from_list(train)
    return datasets.DatasetDict(sets)
datasets.load_dataset = load_dataset
root = Path(lm_eval.tasks.__file__).parent
names = ('lambada', 'piqa', 'hellaswag', 'winogrande', 'arc', 'siqa', 'super_glue/boolq')
manager = lm_eval.tasks.TaskManager(include_path=[str(root / n) for n in names], include_defaults=False)
out = {}
for name in job['tasks']:
    task = manager.load([name])['tasks'][name]
    task.set_config(key='num_fewshot', value=job['shots'])
    task.set_fewshot_seed(seed=job['seed'])
    task.build_all_requests(limit=None, rank=0, world_size=1)
    documents = []
    for instance in task.instances:
        if instance.idx == 0:
            gold = task.doc_to_text(instance.doc) if task.multiple_input else task.doc_to_target(instance.doc)
            documents.append({'pairs': [], 'target': str(task.doc_to_target(instance.doc)), 'gold': gold})
        documents[-1]['pairs'].append(list(instance.args))
    out[name] = documents
json.dump(out, open(sys.argv[1], 'w'))
)";

// Returns the rows of the task's file, without the fields that the task computes.
std::vector<Json> raw_rows(const Task& task, const fs::path& data, bool fewshot) {
  std::vector<Json> rows;
  std::istringstream lines(read_file(find_task_files(task, data, fewshot)[0]));
  for (std::string line; std::getline(lines, line);) rows.push_back(Json::parse(line));
  return rows;
}

// Converts a row of a local file to the columns of the data set on the Hugging Face Hub.
Json as_on_the_hub(const std::string& task, const Json& row) {
  if (task == "boolq" && row.contains("answer"))
    return {{"question", row["question"]}, {"passage", row["passage"]}, {"label", int(row["answer"].get<bool>())}};
  if (task == "hellaswag" && row.contains("query")) {
    const std::string query = row["query"];
    const size_t at = query.find(": ");
    return {{"activity_label", query.substr(0, at)},
            {"ctx_a", query.substr(at + 2)},
            {"ctx_b", ""},
            {"endings", row["choices"]},
            {"label", std::to_string(row["gold"].get<int>())}};
  }
  return row;
}

void compare(const std::vector<std::string>& names, const fs::path& data, int64_t shots, bool train) {
  Json job = {{"shots", shots}, {"seed", 1234}, {"tasks", Json::object()}};
  std::map<std::string, std::vector<TaskDocument>> rows, pools;
  for (const std::string& name : names) {
    const Task task = find_task(name);
    rows[name] = read_rows(task, data);
    Json& entry = job["tasks"][name] = {{"rows", Json::array()}, {"train", Json::array()}};
    for (const Json& row : raw_rows(task, data, false)) entry["rows"].push_back(as_on_the_hub(name, row));
    if (shots > 0) pools[name] = train ? read_rows(task, data, true) : rows[name];
    if (train) {
      for (const Json& row : raw_rows(task, data, true)) entry["train"].push_back(as_on_the_hub(name, row));
    } else if (shots == 0) {
      // the harness requires a split with this name, even if it draws no examples from it
      entry["train"].push_back(entry["rows"][0]);
    }
  }
  const auto expected = harness_output(kAskHarness, job.dump());
  for (const std::string& name : names) {
    const Task task = find_task(name);
    FewshotSampler sampler(task, pools[name], shots, 1234);
    ASSERT_EQ(expected[name].size(), rows[name].size()) << name;
    for (size_t i = 0; i < rows[name].size(); ++i) {
      const Question q = make_question(task, rows[name][i], sampler.next(rows[name][i]));
      const auto& e = expected[name][i];
      ASSERT_EQ(q.pairs.size(), e["pairs"].size()) << name << " " << i;
      for (size_t c = 0; c < q.pairs.size(); ++c) {
        ASSERT_EQ(q.pairs[c].context, e["pairs"][c][0].get<std::string>()) << name << " " << i;
        ASSERT_EQ(q.pairs[c].continuation, e["pairs"][c][1].get<std::string>()) << name << " " << i;
      }
      ASSERT_EQ(q.target, e["target"].get<std::string>()) << name << " " << i;
      if (e["gold"].is_number()) {
        ASSERT_EQ(q.label, e["gold"].get<int64_t>()) << name << " " << i;
      }
    }
  }
}

const std::vector<std::string> kTasks = {"piqa",  "hellaswag",      "winogrande", "social_iqa",
                                         "boolq", "lambada_openai", "arc_easy",   "arc_challenge"};

// Writes rows with unusual content: leading and trailing spaces, empty fields, markup, capitals, other scripts.
void write_rows(const Folder& folder) {
  std::string piqa, hellaswag, winogrande, siqa, boolq, lambada, arc;
  for (int i = 0; i < 12; ++i) {
    const std::string n = std::to_string(i);
    piqa +=
        Json({{"goal", " goal " + n + (i % 3 ? "" : "\n")}, {"sol1", " a" + n}, {"sol2", "b é " + n}, {"label", i % 2}})
            .dump() +
        "\n";
    hellaswag += Json({{"activity_label", "Label " + n},
                       {"ctx_a", "[header] How to [title] go " + n + " "},
                       {"ctx_b", i % 2 ? "" : "éCOLE Is  [x] OPEN"},
                       {"endings", {" x [title] " + n, "[step] y", "z  z", "ÀÉ"}},
                       {"label", std::to_string(i % 4)}})
                     .dump() +
                 "\n";
    winogrande += Json({{"sentence", "The _ was " + n + (i % 2 ? " _ again " : ".")},
                        {"option1", "cat"},
                        {"option2", "dog "},
                        {"answer", i % 2 ? "1" : "2"}})
                      .dump() +
                  "\n";
    siqa += Json({{"context", "C" + n},
                  {"question", "Q?"},
                  {"answerA", "a"},
                  {"answerB", "b "},
                  {"answerC", n},
                  {"label", std::to_string(1 + i % 3)}})
                .dump() +
            "\n";
    boolq += Json({{"question", "is " + n}, {"passage", "P\n" + n}, {"label", i % 2}}).dump() + "\n";
    lambada += Json({{"text", i == 3 ? "word" : i == 4 ? "ends with space " : "one  two\nthree " + n}}).dump() + "\n";
    arc += Json({{"id", n},
                 {"question", "Q" + n},
                 {"choices",
                  {{"text", {"r", "s", "t" + n}}, {"label", i % 2 ? Json({"1", "2", "3"}) : Json({"A", "B", "C"})}}},
                 {"answerKey", i % 2 ? "2" : "C"}})
               .dump() +
           "\n";
  }
  piqa += piqa.substr(0, piqa.find('\n') + 1);  // duplicates one document
  const std::map<std::string, std::string> files = {
      {"piqa", piqa},   {"hellaswag", hellaswag},    {"winogrande", winogrande}, {"social_iqa", siqa},
      {"boolq", boolq}, {"lambada_openai", lambada}, {"arc_easy", arc},          {"arc_challenge", arc}};
  for (const auto& [name, content] : files) {
    folder.write(name + ".jsonl", content);
    folder.write(name + "-train.jsonl", content);
  }
}

TEST(HarnessTasks, UnusualRows_GiveTheSameStrings) {
  LAZY_NEEDS_HARNESS();
  const Folder folder;
  write_rows(folder);
  compare(kTasks, folder.path, 0, false);
}

TEST(HarnessTasks, FewShotExamples_AreTheSame) {
  LAZY_NEEDS_HARNESS();
  const Folder folder;
  write_rows(folder);
  const std::vector<std::string> trained(kTasks.begin(), kTasks.begin() + 5);
  compare(trained, folder.path, 3, true);
  compare({"arc_easy", "arc_challenge"}, folder.path, 5, true);
  compare({"lambada_openai"}, folder.path, 2, false);
  // Two of the 13 rows are equal. If the first 12 rows that the sampler draws for one of them include both, the sampler
  // must draw again.
  compare({"piqa"}, folder.path, 11, true);
}

TEST(HarnessTasksData, FullSets_GiveTheSameStrings) {
  LAZY_NEEDS_HARNESS();
  const std::string data = test_data(".");
  if (data.empty()) GTEST_SKIP() << "LAZY_TEST_DATA does not name a folder: no comparison on the real data sets";
  compare(kTasks, data, 0, false);
}

}  // namespace lazy::eval
