// Recipes that train very small models: records, and resuming after the process was killed.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "core/error.h"
#include "core/file.h"
#include "core/stop.h"
#include "core/text.h"
#include "repro/report.h"
#include "repro/small_recipes.h"
#include "support/error_of.h"
#include "support/tiny_corpus.h"

namespace lazy::repro {
namespace {
namespace fs = std::filesystem;
using testing::HasSubstr;

class ReproRun : public testing::Test {
 protected:
  fs::path folder_ = fs::path(testing::TempDir()) / ("repro_" + std::to_string(::getpid()));
  void SetUp() override { write_tiny_corpus(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
};

TEST_F(ReproRun, Run_MeasuresRecordsAndReports) {
  const Recipe probe = small_recipe(6);
  RunOptions o = small_recipe_options(folder_);
  fs::create_directories(folder_ / "code");
  std::ofstream(folder_ / "code" / "main.zig") << std::string(4000, 'x') << "\n";
  std::ofstream(folder_ / "code" / "picture.png") << std::string("\x89PNG\0\0\0", 7);
  o.conditions.domains["code"] = folder_ / "code";
  EXPECT_EQ(plan_recipe(probe, o).steps.at(0).found, false);
  EXPECT_FALSE(fs::exists(o.output)) << "a plan writes nothing";
  const RecipeRun run = run_recipe(probe, o);
  std::map<std::string, Json> values;
  for (const StepRun& s : run.steps) values[s.step.id] = s.record.at("values");
  EXPECT_EQ(values.at("a.heldout").at("loss").size(), 8u);
  EXPECT_EQ(values.at("a.sinks").at("sink_ratio").size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    const auto at = [&](const char* model, const char* field) {
      return values.at(model).at(field).at(i).get<double>();
    };
    EXPECT_NEAR(at("a.sinks", "sink_ratio") + at("a.sinks", "density") + at("a.sinks", "released_mass"), 1, 1e-6);
    EXPECT_NEAR(at("b.sinks", "released_mass"), 0, 1e-5) << "the softmax weights of the keys sum to one";
  }
  EXPECT_EQ(values.at("a.learned").at("distance_bias").at(1).at(1).size(), 16u);
  EXPECT_FALSE(values.at("b.learned").contains("tau"));
  EXPECT_EQ(values.at("a.lengths").at("heldout").at("64").size(), 3u);
  EXPECT_EQ(values.at("a.lengths").at("collapse").at("32").at("cosine").size(), 3u)
      << "one value per stretch of held-out text";
  EXPECT_GT(values.at("a.lengths").at("collapse").at("32").at("effective_rank").at(0).get<double>(), 1);
  EXPECT_EQ(values.at("a.domain-code").at("tokens"), 4001);
  const fs::path report = write_report(run, folder_ / "report");
  EXPECT_THAT(read_file(report), HasSubstr("| a | "));
  EXPECT_THAT(read_file(folder_ / "report" / "probe.html"), HasSubstr("<section id=\"distance-bias\">"));
  for (const StepRun& s : plan_recipe(probe, o).steps) EXPECT_TRUE(s.found) << s.step.id;
}

// Steps that are copied to RECORDS/steps replace the same steps in other output folders, with or without their models.
TEST_F(ReproRun, RecordedSteps_AreReusedElsewhere) {
  const Recipe probe = small_recipe(2);
  const RunOptions o = small_recipe_options(folder_);
  const RecipeRun run = run_recipe(probe, o);
  const fs::path records = folder_ / "records";
  fs::create_directories(records);
  fs::rename(o.output / "tiny/steps", records / "steps");
  const auto elsewhere = [&](const Recipe& recipe, const fs::path& corpus, int64_t seeds = 1) {
    RunOptions other = small_recipe_options(folder_, "other");
    other.records = records;
    other.conditions.corpus = corpus;
    other.conditions.seeds = seeds;
    return judge_finished(recipe, other);
  };
  const RecipeRun found = elsewhere(probe, "nowhere");
  ASSERT_EQ(found.steps.size(), run.steps.size());
  for (size_t n = 0; n < run.steps.size(); ++n) {
    EXPECT_TRUE(found.steps[n].found) << found.steps[n].step.id;
    EXPECT_EQ(found.steps[n].record, run.steps[n].record);
    EXPECT_THAT(found.steps[n].evidence, testing::StartsWith("steps/" + found.steps[n].step.id + "-"));
  }
  EXPECT_EQ(found.findings.at(0).estimate->value, run.findings.at(0).estimate->value);
  const auto served = [](const RecipeRun& r) {
    return std::count_if(r.steps.begin(), r.steps.end(), [](const StepRun& s) { return s.found; });
  };
  const auto steps = static_cast<int64_t>(run.steps.size());
  EXPECT_EQ(served(elsewhere(probe, "nowhere", 2)), steps)
      << "the second seed has no records, so only the steps of the first seed are found";
  EXPECT_EQ(served(elsewhere(small_recipe(3), "nowhere")), 1)
      << "the training settings differ, so only the step without a model is found in the records";
  write_tiny_corpus(folder_ / "another", 8);
  EXPECT_EQ(served(elsewhere(probe, folder_ / "another/corpus")), 0);

  const fs::path file = records / "steps" / run.steps[0].folder.filename() / "record.json";
  std::ofstream(file) << "{\"values\": {}}";
  EXPECT_THAT(error_of([&] { elsewhere(probe, "nowhere"); }), Names({file.string(), "settings"}));
}

// The tiny models have a context of 256 tokens; PIQA has a longer answer choice.
TEST_F(ReproRun, TaskLongerThanContext_IsSkipped) {
  fs::create_directories(folder_ / "data");
  const auto write = [&](const char* name, const std::string& answer) {
    std::ofstream(folder_ / "data" / name)
        << Json{{"goal", "to open a jar"}, {"sol1", answer}, {"sol2", "pull it"}, {"label", 0}}.dump() << "\n";
  };
  write("piqa.jsonl", std::string(2000, 'y'));
  std::ofstream(folder_ / "data" / "boolq.jsonl")
      << Json{{"question", "is it"}, {"passage", "It is."}, {"label", 1}}.dump() << "\n";
  const Recipe probe = small_recipe(2, "[[step]]\nkind = \"tasks\"\n");
  RunOptions o = small_recipe_options(folder_);
  o.conditions.data = folder_ / "data";
  const Json values = run_recipe(probe, o).steps.at(2).record.at("values");
  EXPECT_TRUE(values.contains("boolq")) << values;
  EXPECT_FALSE(values.contains("piqa")) << values;
}

TEST_F(ReproRun, Run_ResumesAfterFailedStep) {
  const Recipe probe = small_recipe(6);
  RunOptions o = small_recipe_options(folder_);
  o.latency = [](const Json&) -> Json { fail_run("repro", "the machine went away"); };
  EXPECT_THROW(run_recipe(probe, o), RunError);
  std::map<std::string, fs::file_time_type> written;
  for (const StepRun& s : plan_recipe(probe, o).steps) {
    EXPECT_EQ(s.found, s.step.id != "latency") << s.step.id;
    if (s.found) written[s.step.id] = fs::last_write_time(s.folder / "record.json");
  }
  int calls = 0;
  o.latency = [&](const Json&) { return Json{{"calls", ++calls}}; };
  const RecipeRun run = run_recipe(probe, o);
  EXPECT_EQ(calls, 1);
  for (const StepRun& s : run.steps) {
    if (s.step.id != "latency") {
      EXPECT_EQ(fs::last_write_time(s.folder / "record.json"), written.at(s.step.id)) << s.step.id;
    }
  }
  RunOptions other = o;  // with a different corpus, all steps are different steps
  write_tiny_corpus(folder_ / "second");
  std::ofstream(folder_ / "second" / "corpus" / "corpus.json", std::ios::app) << "\n";
  other.conditions.corpus = folder_ / "second" / "corpus";
  for (const StepRun& s : plan_recipe(probe, other).steps) EXPECT_EQ(s.found, s.step.id == "latency") << s.step.id;
}

TEST_F(ReproRun, Steps_CanBeDividedAmongProcesses) {
  const Recipe probe = small_recipe(6);
  RunOptions part = small_recipe_options(folder_);
  part.only = {"b.heldout"};
  const RecipeRun first = run_recipe(probe, part);
  EXPECT_EQ(first.unfinished, static_cast<int64_t>(first.steps.size()) - 2)
      << "every step is unfinished except the training of the model and its loss";
  EXPECT_TRUE(first.findings.empty());
  EXPECT_EQ(plan_recipe(probe, part).steps.size(), 2u) << "the plan contains only the selected step and its training";
  for (const StepRun& s : plan_recipe(probe, small_recipe_options(folder_)).steps)
    EXPECT_EQ(s.found, s.step.id == "b" || s.step.id == "b.heldout") << s.step.id;
  part.only = {"a"};
  run_recipe(probe, part);
  for (const StepRun& s : plan_recipe(probe, small_recipe_options(folder_)).steps) {
    const std::string model = s.step.id.substr(0, s.step.id.find('.'));
    EXPECT_EQ(s.found, model == "a" || s.step.id == "b" || s.step.id == "b.heldout") << s.step.id;
  }
  part.only = {"nothing"};
  EXPECT_THAT(error_of([&] { run_recipe(probe, part); }), Names({"--only", "probe", "a", "b", "a.heldout", "nothing"}));
  const RecipeRun divided = run_recipe(probe, small_recipe_options(folder_)),
                  whole = run_recipe(probe, small_recipe_options(folder_, "whole"));
  EXPECT_EQ(divided.unfinished, 0);
  ASSERT_EQ(divided.findings.size(), 1u);
  ASSERT_TRUE(divided.findings.at(0).estimate && whole.findings.at(0).estimate);
  EXPECT_EQ(divided.findings.at(0).estimate->value, whole.findings.at(0).estimate->value);
}

TEST_F(ReproRun, Report_CoversFinishedSteps) {
  const Recipe probe = small_recipe(6);
  RunOptions part = small_recipe_options(folder_);
  const RecipeRun nothing = judge_finished(probe, part);
  EXPECT_TRUE(nothing.findings.empty());
  EXPECT_EQ(nothing.unfinished, static_cast<int64_t>(nothing.steps.size()));
  EXPECT_FALSE(fs::exists(part.output)) << "creating a report must not run steps or write files";
  part.only = {"a.heldout"};
  run_recipe(probe, part);
  part.only.clear();
  const RecipeRun half = judge_finished(probe, part);
  EXPECT_EQ(half.unfinished, static_cast<int64_t>(half.steps.size()) - 2);
  ASSERT_EQ(half.findings.size(), 1u);
  EXPECT_EQ(half.findings[0].verdict, Verdict::open);
  EXPECT_EQ(half.findings[0].reason, "missing");
  part.only = {"b.heldout"};
  run_recipe(probe, part);
  part.only.clear();
  const RecipeRun both = judge_finished(probe, part);
  ASSERT_TRUE(both.findings.at(0).estimate);
  EXPECT_THAT(cautions(both), Names({both.unfinished, both.steps.size()}));
  EXPECT_THAT(to_html(both), HasSubstr(cautions(both)));
  const std::string text = to_markdown(both);
  for (const StepRun& s : both.steps) {
    EXPECT_EQ(s.left_out.empty(), s.found) << s.step.id;
    EXPECT_THAT(text, HasSubstr(s.left_out));
  }
  EXPECT_EQ(to_json(both).at("unfinished"), both.unfinished);
  for (const StepRun& s : plan_recipe(probe, part).steps)
    EXPECT_EQ(s.found, s.step.model.empty() ? s.step.kind == StepKind::train : s.step.id.ends_with(".heldout"))
        << s.step.id;
}

// Starts run_small_recipe, sends it `signal` as soon as `due()` is true, and returns its wait status.
int stopped_worker(const fs::path& folder, int signal, const std::function<bool()>& due) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    const int null = ::open("/dev/null", O_WRONLY);
    ::dup2(null, 1);
    ::dup2(null, 2);
    ::execl(LAZY_SMALL_RECIPE_PROGRAM, "run_small_recipe", folder.c_str(), nullptr);
    ::_exit(127);
  }
  int status = 0;
  while (::waitpid(pid, &status, WNOHANG) == 0) {
    if (due()) {
      ::kill(pid, signal);
      ::waitpid(pid, &status, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return status;
}

// Returns a condition: the log of the first training of run_small_recipe has more than `lines` lines.
std::function<bool()> logged(const fs::path& folder, size_t lines) {
  return [=] {
    std::error_code ignored;
    for (const auto& step : fs::directory_iterator(folder / "killed" / "tiny" / "steps", ignored)) {
      const fs::path log = step.path() / "run" / "log.jsonl";
      if (fs::exists(log) && split(read_file(log), '\n').size() > lines) return true;
    }
    return false;
  };
}

// The records that run_small_recipe has written, with their modification times.
std::map<std::string, fs::file_time_type> records_of(const fs::path& folder) {
  std::map<std::string, fs::file_time_type> out;
  std::error_code ignored;
  for (const auto& step : fs::directory_iterator(folder / "killed" / "tiny" / "steps", ignored)) {
    const fs::path record = step.path() / "record.json";
    if (fs::exists(record)) out[record.string()] = fs::last_write_time(record);
  }
  return out;
}

std::vector<double> losses(const RecipeRun& run, const std::string& id) {
  std::vector<double> out;
  for (const StepRun& s : run.steps) {
    if (s.step.id != id) continue;
    for (const std::string& line : split(read_file(s.folder / "run" / "log.jsonl"), '\n')) {
      if (!line.empty()) out.push_back(Json::parse(line).at("loss_metrics/global_avg_loss").get<double>());
    }
  }
  return out;
}

TEST_F(ReproRun, Run_ResumesAfterKillDuringTraining) {
  const int status = stopped_worker(folder_, SIGKILL, logged(folder_, 12));
  ASSERT_TRUE(WIFSIGNALED(status)) << "the child process ended before it was killed";
  const Recipe probe = small_recipe(kWorkerSteps);
  for (const StepRun& s : plan_recipe(probe, small_recipe_options(folder_, "killed")).steps) EXPECT_FALSE(s.found);
  const RecipeRun resumed = run_recipe(probe, small_recipe_options(folder_, "killed")),
                  whole = run_recipe(probe, small_recipe_options(folder_, "whole"));
  EXPECT_EQ(losses(resumed, "a").size(), size_t{kWorkerSteps});
  EXPECT_EQ(losses(resumed, "a"), losses(whole, "a")) << "a resumed training run must give the same losses";
  EXPECT_EQ(resumed.findings.at(0).estimate->value, whole.findings.at(0).estimate->value);
}

TEST_F(ReproRun, Signal_GivesExitCode128PlusSignal) {
  const int status = stopped_worker(folder_, SIGTERM, logged(folder_, 8));
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGTERM);
}

// The run is killed twice while it measures models in pieces. Recorded steps do not run again, and the final result is
// equal to the result of an uninterrupted run.
TEST_F(ReproRun, ComparisonInPieces_ResumesAfterKill) {
  fs::create_directories(folder_ / "data");
  std::ofstream(folder_ / "data" / "wiki.test.raw")
      << " = A dog = \n the lazy dog sleeps under a tree and the quick brown fox jumps over the lazy dog \n";
  std::ofstream(folder_ / "data" / "boolq.jsonl")
      << Json{{"question", "is it"}, {"passage", "It is."}, {"label", 1}}.dump() << "\n";
  std::map<std::string, fs::file_time_type> before;
  for (const size_t records : {3, 16}) {  // within the first seed's trainings; within its measurements
    const int status = stopped_worker(folder_, SIGKILL, [&] { return records_of(folder_).size() >= records; });
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child process ended before it was killed";
    const auto now = records_of(folder_);
    for (const auto& [record, time] : before) EXPECT_EQ(now.at(record), time) << record;
    before = now;
  }
  for (const auto& [record, time] : before)
    EXPECT_THAT(record, testing::Not(HasSubstr("seed2"))) << "the first seed runs first";
  const RecipeRun resumed = run_recipe(comparison(), comparison_options(folder_, "killed"));
  const auto now = records_of(folder_);
  for (const auto& [record, time] : before) EXPECT_EQ(now.at(record), time) << record;

  const RecipeRun whole = run_recipe(comparison(), comparison_options(folder_, "whole"));
  ASSERT_EQ(resumed.steps.size(), whole.steps.size());
  for (size_t n = 0; n < whole.steps.size(); ++n) {
    const StepRun &a = resumed.steps[n], &b = whole.steps[n];
    if (b.step.id.ends_with("tasks-piqa")) {
      EXPECT_THAT(a.left_out, Names({"piqa", "--data"}));
      continue;
    }
    if (b.step.kind != StepKind::train) {
      EXPECT_EQ(a.record.at("values"), b.record.at("values")) << b.step.id;
    }
    if (b.step.id.starts_with("learner.seed2")) {
      const Json overrides = a.record.at("inputs").at("trainings").at(0).at("overrides");
      EXPECT_EQ(overrides.back(), "optimizer.lr=1e-2") << "with a learning rate of 1e-9 the model does not learn";
    }
  }
  const Results results = results_of(resumed);
  const Json* tasks = results.find("learner.seed2.tasks");
  ASSERT_TRUE(tasks);
  for (const char* task : {"wikitext", "wikitext-bos", "boolq"}) EXPECT_TRUE(tasks->contains(task)) << *tasks;
  EXPECT_NE(tasks->at("wikitext"), tasks->at("wikitext-bos"));
  for (const char* length : {"32", "128"}) {
    EXPECT_EQ(results.find("softmax.lengths")->at("heldout").at(length).size(), 2u);
    EXPECT_TRUE(results.find("softmax.lengths")->at("collapse").contains(length));
  }
  EXPECT_THAT(to_markdown(whole), HasSubstr("| learner | optimizer.lr=1e-9 | 512 |"));
  const std::string page = to_markdown(resumed);
  EXPECT_THAT(page, HasSubstr("a model of seconds"));
  EXPECT_THAT(page, HasSubstr("| learner | optimizer.lr=1e-9 | 512 |"));
  EXPECT_THAT(page, testing::ContainsRegex("optimizer.lr=1e-2 \\| 512 \\| [0-9.]+ \\| yes \\|"));
  EXPECT_THAT(page, testing::ContainsRegex("\\| [12] \\| learner \\| [0-9.]+ \\[[-0-9.]+, [0-9.]+\\] \\| .* \\| 1 "
                                           "\\(10\\) \\| – \\|"));
  EXPECT_THAT(page, Names({"1M", "2M", "ppl"}));
}

}  // namespace
}  // namespace lazy::repro
