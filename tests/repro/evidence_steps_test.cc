// Recipes that use the records of the evidence: which steps a record replaces, and with which values.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/file.h"
#include "repro/configs.h"
#include "repro/evidence/record.h"
#include "repro/evidence/steps.h"
#include "repro/report.h"
#include "support/error_of.h"
#include "support/run_command.h"
#include "support/tiny_corpus.h"

namespace lazy::repro {
namespace {
namespace fs = std::filesystem;
using testing::HasSubstr;

const fs::path kRecords = fs::path(LAZY_SOURCE_DIR) / "docs/results/evidence";

Conditions small(int64_t seeds = 1) { return {find_scale("small"), {}, {}, {}, seeds, "cpu"}; }

std::string run_of(const std::map<std::string, RecordedStep>& steps, const std::string& id) {
  const auto found = steps.find(id);
  return found == steps.end() ? "" : found->second.run;
}

class EvidenceSteps : public testing::Test {
 protected:
  const TemporaryFolder configs_;
  const RecordedRuns runs_{kRecords, "", configs_.path};

  std::map<std::string, RecordedStep> steps(const char* recipe, int64_t seeds = 1) const {
    return runs_.steps(find_recipe(recipe).plan(small(seeds)));
  }
  Json record(const EvidenceRun& run) const { return read_record(kRecords, embedded_protocol(), run, ""); }
};

// Models of recipes are matched to models of the protocol by comparing their configurations, not their names.
TEST_F(EvidenceSteps, ModelsAndSeeds_AreFoundByConfiguration) {
  const auto fig6 = steps("fig6", 2);
  for (const auto& [step, run] : {std::pair{"lazy", "B.lazy.seed1"},
                                  {"lazy.seed2", "B.lazy.seed2"},
                                  {"lazy-rope10k", "B.elastic-bias.seed1"},
                                  {"softmax", "B.softmax.seed1"},
                                  {"softmax-rope150k.seed2", "B.softmax-base150k.seed2"},
                                  {"no-positional", "B.elastic.seed1"},
                                  {"no-elastic.seed2", "B.softmax-bias-base150k.seed2"}}) {
    EXPECT_EQ(run_of(fig6, step), run) << step;
    EXPECT_EQ(run_of(fig6, std::string(step) + ".heldout"), run);
    EXPECT_EQ(run_of(fig6, std::string(step) + ".lengths"), run);
  }
  Conditions tiny = small();
  tiny.scale = find_scale("tiny");
  EXPECT_TRUE(runs_.steps(find_recipe("fig6").plan(tiny)).empty()) << "tiny scale trains different models";
  EXPECT_EQ(steps("fig8").size(), 2u) << "two recorded steps of its model; no run of the protocol has this model";
}

TEST_F(EvidenceSteps, Values_EqualTheRecords) {
  const Protocol protocol = embedded_protocol();
  const auto runs = protocol.runs();
  const auto run = std::find_if(runs.begin(), runs.end(), [](const auto& r) { return r.id() == "B.lazy.seed1"; });
  ASSERT_NE(run, runs.end());
  const Json record = this->record(*run), &measures = record.at("measures");
  const auto fig5 = steps("fig5"), fig6 = steps("fig6");
  const auto values = [](const auto& steps, const char* id) { return steps.at(id).record.at("values"); };
  EXPECT_EQ(values(fig5, "lazy").at("parameters"), record.at("parameters"));
  EXPECT_EQ(values(fig5, "lazy.heldout").at("loss"), Json::array({measures.at("heldout").at("loss")}));
  for (const char* what : {"sink_ratio", "sink_1", "excess"})
    EXPECT_EQ(values(fig5, "lazy.sinks").at(what), Json::array({measures.at("sinks").at("512").at("bos").at(what)}));
  EXPECT_EQ(values(fig5, "lazy.learned").at("tau"), measures.at("learned").at("tau"));
  const Json& measured = measures.at("lengths").at("bos_every_window");
  for (const char* length : {"512", "1024", "2048"})
    EXPECT_EQ(values(fig6, "lazy.lengths").at("heldout").at(length), measured.at(length).at("by_group"));

  // A bias that is recorded by ranges is expanded to one value for each distance below the window.
  const Json learned = values(steps("fig4"), "lazy.learned");
  const Json &bias = learned.at("distance_bias"), &ranges = measures.at("learned").at("distance_bias");
  ASSERT_EQ(bias.at(3).at(5).size(), 128u);
  for (size_t n = 0; n < ranges.at("distances").size(); ++n) {
    for (int64_t d = ranges.at("distances").at(n).at(0); d <= ranges.at("distances").at(n).at(1).get<int64_t>(); ++d)
      EXPECT_EQ(bias.at(3).at(5).at(static_cast<size_t>(d)), ranges.at("bias").at(3).at(5).at(n)) << d;
  }
}

// The runs of the protocol validate on other sequences than recipes, so validation curves come only from recorded
// steps.
TEST_F(EvidenceSteps, ValidationCurves_ComeFromRecordedSteps) {
  const auto of_steps = steps("rivals");
  EXPECT_EQ(run_of(of_steps, "softmax"), "B.softmax.seed1");
  for (const auto& [model, folder] : {std::pair{"softmax", "softmax-6b503f8b29"}, {"gated", "gated-0d2bd3875f"}}) {
    const Json step = Json::parse(read_file(kRecords / "steps" / folder / "record.json"));
    EXPECT_EQ(of_steps.at(model).record.at("values").at("validation"), step.at("values").at("validation")) << model;
  }
  EXPECT_FALSE(steps("fig6").at("no-elastic").record.at("values").contains("validation"))
      << "no recorded step has this model";
}

TEST_F(EvidenceSteps, OtherSettings_AreNotFound) {
  Conditions conditions = small();
  const auto of = [&](StepKind kind, const Json& more) {
    Plan plan(conditions);
    plan.train({"softmax", "transformer", {}}).measure(kind, more);
    return run_of(runs_.steps(plan.steps()), fmt::format("softmax.{}", name(kind)));
  };
  EXPECT_EQ(of(StepKind::heldout, Json::object()), "B.softmax.seed1");
  EXPECT_EQ(of(StepKind::heldout, {{"cache", "streaming:4+60"}}), "");
  EXPECT_EQ(of(StepKind::lengths, {{"lengths", {512, 4096}}}), "B.softmax.seed1");
  EXPECT_EQ(of(StepKind::lengths, {{"lengths", {512, 8192}}}), "");
  EXPECT_EQ(of(StepKind::tasks, Json::object()), "");
  Plan other(conditions);
  other.train({"softmax", "transformer", {"optimizer.lr=2e-3"}});
  EXPECT_TRUE(runs_.steps(other.steps()).empty())
      << "a record does not apply to a training run with another learning rate";
  conditions.models = {{"softmax", "elsewhere"}};
  EXPECT_EQ(of(StepKind::heldout, Json::object()), "") << "records do not apply to a model that the user passes";
}

TEST_F(EvidenceSteps, RecordsOfAnotherCorpus_AreIgnored) {
  const fs::path folder = fs::path(testing::TempDir()) / fmt::format("evidence_steps_{}", ::getpid());
  write_tiny_corpus(folder);
  EXPECT_TRUE(
      RecordedRuns(kRecords, folder / "corpus", configs_.path).steps(find_recipe("fig6").plan(small())).empty());
  fs::remove_all(folder);
  EXPECT_TRUE(RecordedRuns("nowhere", "", configs_.path).steps(find_recipe("fig6").plan(small())).empty());
}

// Records do not contain models: if a step needs a model, it is trained.
TEST_F(EvidenceSteps, NeededModel_IsTrainedDespiteRecord) {
  RunOptions options;
  options.conditions = small();
  options.records = kRecords;
  options.output = "nowhere";
  const auto found = [&](const char* recipe, const char* id) {
    for (const StepRun& s : plan_recipe(find_recipe(recipe), options).steps)
      if (s.step.id == id) return s.found;
    ADD_FAILURE() << id;
    return false;
  };
  options.conditions.domains = {{"code", "anywhere"}};
  EXPECT_TRUE(found("fig6", "lazy"));
  EXPECT_TRUE(found("cross-domain", "lazy.heldout"));
  EXPECT_FALSE(found("cross-domain", "lazy")) << "the model is needed to measure the loss on the domain's text";
  EXPECT_FALSE(found("cross-domain", "lazy.domain-code"));
  EXPECT_FALSE(found("latency", "softmax-rope150k"))
      << "it is timed together with lazy, and the recorded times are from a GPU";
  EXPECT_TRUE(found("fig7", "lazy.repetition")) << "this step has a record";
  EXPECT_TRUE(found("fig7", "lazy"));
  options.records.clear();
  EXPECT_FALSE(found("fig6", "lazy"));
}

TEST_F(EvidenceSteps, LastRun_CountsCompleteSeeds) {
  Conditions conditions = small(3);
  const auto last = last_run(find_recipe("fig5"), conditions, runs_);
  ASSERT_TRUE(last);
  EXPECT_EQ(last->scale, "small");
  EXPECT_EQ(last->seeds, 3);
  EXPECT_EQ(last_run(find_recipe("fig7"), conditions, runs_)->seeds, 1);
  EXPECT_EQ(last_run(find_recipe("table1"), conditions, runs_)->seeds, 2);
  EXPECT_FALSE(last_run(find_recipe("fig2"), conditions, runs_));

  // Removes the record of one measurement.
  const TemporaryFolder part;
  fs::copy(kRecords, part.path / "records", fs::copy_options::recursive);
  for (const auto& step : fs::directory_iterator(part.path / "records/steps")) {
    if (step.path().filename().string().starts_with("lazy.repetition-")) fs::remove_all(step.path());
  }
  const RecordedRuns others{part.path / "records", "", part.path / "configs"};
  EXPECT_EQ(last_run(find_recipe("fig7"), conditions, others)->missing, 1);
  EXPECT_EQ(last_run(find_recipe("fig5"), conditions, others)->missing, 0);
}

// The page states the origin of its numbers, and writing it needs neither a corpus nor a GPU.
TEST(EvidenceStepsCommand, Report_IsWrittenFromRecords) {
  const fs::path output = fs::path(testing::TempDir()) / fmt::format("evidence_steps_report_{}", ::getpid());
  const auto [code, page] =
      run_command(fmt::format("{} repro fig5 --scale small --seeds 3 --report --records {} --output {}", LAZY_BINARY,
                              kRecords.string(), output.string()));
  ASSERT_EQ(code, 0) << page;
  EXPECT_THAT(page, Names({"H200", "lazy.seed2.learned", "B.lazy.seed2"}));
  const std::string text = read_file(output / "small/fig5.json");
  EXPECT_THAT(text, HasSubstr("\"evidence\": \"B.lazy.seed3\""));
  const Json json = Json::parse(text);
  EXPECT_EQ(json.at("device"), "NVIDIA H200");
  EXPECT_EQ(json.at("seeds"), 3);
  EXPECT_FALSE(json.at("steps").empty());
  for (const Json& step : json.at("steps")) EXPECT_TRUE(step.contains("evidence")) << step;
  fs::remove_all(output);
}

}  // namespace
}  // namespace lazy::repro
