// Renders the pages of experiments in a real browser (support/browser.h): maps with sliders, histograms, curves by
// position, measured and published values, and the command that created the page.
#include <gmock/gmock.h>

#include <map>

#include "core/text.h"
#include "experiment_folder.h"
#include "report/report.h"
#include "repro/report.h"
#include "sinks/analysis.h"
#include "support/browser.h"

namespace lazy::repro {
namespace {
using testing::HasSubstr;

class ExperimentPages : public BrowserTest {
 protected:
  // The HTML page of a recipe whose step values are computed by `values`.
  static std::string page(const char* recipe, const Conditions& conditions,
                          const std::function<Json(const Step&)>& values) {
    RecipeRun run{&find_recipe(recipe), conditions, {}, {}, std::string("lazy repro ") + recipe, "2026-01-02"};
    std::map<std::string, Json> all;
    for (Step& step : run.recipe->plan(conditions)) {
      if (step.kind == StepKind::train) continue;
      all[step.id] = values(step);
      run.steps.push_back({step, {}, {{"seconds", 1.0}, {"values", all[step.id]}}, "", true});
    }
    run.findings = run.recipe->judge(conditions, Results(1, all));
    return to_html(run);
  }
};

TEST_F(ExperimentPages, Page_OfGivenModel) {
  const ExperimentFolder files;
  const auto check = [&](const char* recipe, int pictures, int sliders) {
    SCOPED_TRACE(recipe);
    RecipeRun done = run_recipe(find_recipe(recipe), files.options());
    done.command = fmt::format("lazy repro {} --model DIR", recipe);
    const std::string html = to_html(done);
    // The page shows the published values together with the measured values.
    EXPECT_FALSE(done.findings.empty());
    for (const Finding& f : done.findings) EXPECT_NE(html.find(html_escape(f.paper)), std::string::npos) << f.paper;
    EXPECT_NE(html.find(done.command), std::string::npos);
    check_page(recipe, html, pictures, sliders);
  };
  check("gpt2-gamma", 2, 0);
  check("gpt2-epe", 6, 0);
  check("gpt2-delta", 3, 0);
  check("gpt2-interventions", 3 + 9, 3);
  check("fig3", 3, 3);
  check("table5", 0, 0);
  shoot("gpt2-interventions", 390, 5200, "-phone");
}

TEST_F(ExperimentPages, Page_OfToys) {
  Conditions conditions{find_scale("tiny"), {}, {}, {}, 1, "cpu"};
  for (const char* recipe : {"toy-unigram", "toy-bigram"}) {
    const std::string html = page(recipe, conditions, [](const Step& step) {
      Json settings = step.settings;
      settings["steps"] = 20;
      settings["snapshots"] = {0, 10};
      return run_recipe_experiment({settings, "cpu", false});
    });
    EXPECT_THAT(html.substr(0, 4000), HasSubstr(recipe));
    const int steps = 3, sequences = recipe == std::string("toy-unigram") ? 5 : 16;
    check_page(recipe, html, 7, 2 * (steps + sequences));  // with BOS and without
  }
  shoot("toy-unigram", 390, 5200, "-phone");
}

TEST_F(ExperimentPages, Page_OfFigure2) {
  Conditions conditions{find_scale("tiny"), {}, {}, {}, 1, "cpu"};
  const ExperimentFolder files;
  const std::string html = page("fig2", conditions, [&](const Step& step) {
    Json settings = step.settings;
    settings.update({{"texts", 9}, {"length", step.settings.at("study") == "mask" ? 70 : 48}});
    return run_recipe_experiment(files.experiment(step.settings.at("study").get<std::string>().c_str(), settings));
  });
  EXPECT_NE(html.find("Mask@k"), std::string::npos);
  EXPECT_NE(html.find("73.26"), std::string::npos);
  check_page("fig2", html, 1 + 4);
  shoot("fig2", 390, 5200, "-phone");
}

// The page of `lazy sinks` with all further measures and the map of every head; both axes of a map are labeled with
// tokens.
TEST_F(ExperimentPages, Page_OfSinksWithEveryMeasure) {
  const ExperimentFolder files;
  LanguageModel model = LanguageModel::load(files.model());
  const auto tokenizer = load_tokenizer(files.model().string());
  sinks::AnalysisOptions options;
  options.samples = options.sink_samples = 9;
  options.bos = true;
  options.maps = "all";
  options.measures = sinks::kFurtherMeasures;
  options.progress = false;
  const auto source = sinks::text_source(*tokenizer, read_file(files.text()), "text.txt");
  const auto analysis = sinks::analyze(model, *tokenizer, source, options);
  report::RunData run;
  run.folder = files.model();
  run.name = "gpt2";
  run.kind = "softmax";
  const std::string command = "lazy sinks gpt2 --text text.txt --bos --measures all --maps all";
  run.sinks =
      report::parse_sinks(sinks::to_json(analysis, model.config(), "gpt2", "text.txt", options, command), "gpt2");
  const std::string html = report::render({run}, {command, "2026-01-02"});
  EXPECT_NE(html.find(command), std::string::npos);
  check_page("sinks", html, 4, 3 + 4);  // layers and heads
  shoot("sinks", 390, 9000, "-phone");
}

}  // namespace
}  // namespace lazy::repro
