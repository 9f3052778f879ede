// Tables 1 and 3 of the paper: the comparison on nine benchmarks, and the sizes of the benchmarks.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/statistics.h"
#include "model/kv_cache.h"
#include "repro/plan.h"
#include "repro/recipe.h"

namespace lazy::repro {

// Table 1: the paper's overall comparison, for the rows that this repository can train.

namespace {

// Task and metric of lazy eval for each published column, in its order; whether less is better.
struct Column {
  const char *title, *task, *metric;
  bool less;
};
constexpr Column kColumns[] = {{"Wiki. ppl", "wikitext", "word_perplexity", true},
                               {"LMB. ppl", "lambada_openai", "perplexity", true},
                               {"LMB. acc", "lambada_openai", "acc", false},
                               {"PIQA acc", "piqa", "acc", false},
                               {"Hella. acc_n", "hellaswag", "acc_norm", false},
                               {"Wino. acc", "winogrande", "acc", false},
                               {"ARC-e acc", "arc_easy", "acc", false},
                               {"ARC-c acc_n", "arc_challenge", "acc_norm", false},
                               {"SIQA acc", "social_iqa", "acc", false},
                               {"BoolQ acc", "boolq", "acc", false}};

PublishedTable published_rows() {
  PublishedTable t{"Paper, Table 1 (340M / 15B tokens, then 760M / 30B tokens)", {}, {}};
  for (const Column& c : kColumns) t.columns.push_back(c.title);
  t.columns.push_back("Avg.");
  t.rows = {
      {"Transformer++ 340M", {25.76, 38.02, 33.28, 66.65, 39.86, 53.51, 58.33, 26.88, 38.89, 60.95, 47.29}, "softmax"},
      {"StreamingLLM 340M", {35.52, 38.02, 33.30, 66.43, 39.77, 53.35, 58.38, 26.88, 39.10, 61.01, 47.28}, "streaming"},
      {"Sigmoid Attention 340M",
       {26.65, 36.77, 32.80, 66.87, 39.38, 53.43, 56.90, 27.39, 37.62, 58.44, 46.60},
       "sigmoid"},
      {"Gated DeltaNet 340M",
       {24.90, 32.35, 33.13, 66.43, 41.17, 54.06, 58.59, 29.18, 39.87, 58.99, 47.68},
       "gated-deltanet"},
      {"Titans 340M", {25.07, 28.72, 36.71, 64.88, 40.56, 52.49, 57.72, 28.16, 39.75, 60.01, 47.54}, "titans-mag"},
      {"Lazy Attention 340M", {25.32, 31.84, 35.28, 66.92, 41.58, 52.25, 60.31, 27.56, 38.95, 61.22, 48.01}, "lazy"},
      {"- Positional 340M",
       {25.58, 33.06, 34.02, 66.59, 41.34, 53.43, 60.02, 28.16, 39.20, 60.40, 47.89},
       "no-positional"},
      {"- Elastic 340M", {24.59, 31.56, 34.78, 66.92, 42.11, 54.30, 59.43, 28.67, 39.36, 61.59, 48.39}, "no-elastic"},
      {"Transformer++ 760M",
       {25.21, 27.64, 35.78, 66.92, 42.19, 51.95, 60.38, 32.46, 39.51, 60.37, 48.69},
       "softmax-760m"},
      {"RetNet 760M", {26.08, 24.45, 34.51, 67.19, 41.63, 52.09, 63.17, 32.78, 38.36, 57.92, 48.46}, "retnet-760m"},
      {"Mamba2 760M", {22.94, 28.37, 33.54, 67.90, 42.71, 49.77, 63.48, 31.09, 40.06, 58.15, 48.34}, "mamba2-760m"},
      {"DeltaNet 760M", {24.37, 24.60, 37.06, 66.93, 41.98, 50.65, 64.87, 31.39, 39.88, 59.02, 48.97}, "deltanet-760m"},
      {"TTT 760M", {24.17, 23.51, 34.74, 67.25, 43.92, 50.99, 64.53, 33.81, 40.16, 59.58, 47.32}, "ttt-linear-760m"},
      {"Gated DeltaNet 760M",
       {21.18, 22.09, 35.54, 68.01, 44.95, 50.73, 66.87, 33.09, 39.21, 59.14, 49.69},
       "gated-deltanet-760m"},
      {"Titans 760M", {20.04, 21.96, 37.40, 69.28, 48.46, 52.27, 66.31, 35.84, 40.13, 62.76, 51.56}, "titans-lmm-760m"},
      {"Lazy Attention 760M",
       {24.08, 20.92, 39.72, 69.59, 48.34, 53.83, 65.40, 33.53, 40.43, 61.42, 51.53},
       "lazy-760m"}};
  return t;
}

// StreamingLLM's cache: 4 + 508 of the paper's 4096 tokens; an eighth of the context at smaller scales.
std::string cache_name(const Scale& scale) {
  return StreamingCache{.sinks = 4, .recent = scale.context(Budget::main) / 8 - 4}.name();
}

// The name of a row's model at this scale: below paper scale there is one size.
std::string trained_as(const Scale& scale, std::string model) {
  constexpr std::string_view kLarge = "-760m";
  if (!scale.is_paper() && model.ends_with(kLarge)) model.resize(model.size() - kLarge.size());
  return model;
}

std::vector<Step> plan_rows(const Conditions& c) {
  Plan plan(c);
  plan.train(lazy_model(c.scale, Budget::main)).train(softmax_model(Budget::main)).train(softmax_twin(Budget::main));
  plan.train(without_positional(Budget::main)).train(without_elastic(c.scale, Budget::main));
  plan.train({"sigmoid", "transformer", {"model.normalizer=\"sigmoid\""}, Budget::main});
  if (c.scale.is_paper()) {
    plan.train({"lazy-760m", "lazy", {}, Budget::large}).train({"softmax-760m", "transformer", {}, Budget::large});
  }
  for (const Model& model : mixer_models(c.scale)) plan.train(model);
  plan.measure(StepKind::heldout).measure(StepKind::sinks).measure(StepKind::tasks);
  return plan.streaming("streaming", "softmax", cache_name(c.scale), {StepKind::heldout, StepKind::tasks}).steps();
}

// One task's metric and its standard error, mean over seeds; the error includes the variance between seeds.
struct Measured {
  double value = 0, error = 0;
  int64_t documents = 0;
  bool has_error = false;
};

std::optional<Measured> measured(const Results& results, const std::string& model, const Column& column) {
  Measured m;
  double within = 0;
  std::vector<double> values;
  for (int64_t seed = 1; seed <= results.seeds(); ++seed) {
    const Json* tasks = results.find(training_id(model, seed) + ".tasks");
    if (!tasks || !tasks->contains(column.task) || !tasks->at(column.task).contains(column.metric)) return std::nullopt;
    const Json& found = tasks->at(column.task).at(column.metric);
    values.push_back(found.at("value").get<double>());
    m.documents = found.at("n").get<int64_t>();
    m.has_error = found.contains("stderr");
    if (m.has_error) within += std::pow(found.at("stderr").get<double>(), 2);
  }
  const auto n = static_cast<double>(values.size());
  m.value = mean_of(values);
  m.error = std::sqrt(within / (n * n) + variance_of(values) / n);
  return m;
}

Estimate normal_interval(double value, double error, int64_t n) {
  return {value, value - 1.96 * error, value + 1.96 * error, n};
}

// Lazy Attention's row of the same size.
const PublishedRow& lazy_row(const PublishedTable& table, const PublishedRow& other) {
  const std::string model = other.name.ends_with("760M") ? "lazy-760m" : "lazy";
  return *std::find_if(table.rows.begin(), table.rows.end(), [&](const PublishedRow& r) { return r.model == model; });
}

void compare_task(const Results& results, const Scale& at, const PublishedRow& lazy, const PublishedRow& other,
                  size_t column, std::vector<Finding>& out) {
  const Column& c = kColumns[column];
  const double a = lazy.values[column], b = other.values[column];
  if (a == b) return;
  const Claim claim{fmt::format("Lazy Attention's {} is {} that of {}", c.title, a > b ? "above" : "below", other.name),
                    fmt::format("{:.2f} against {:.2f}", a, b), std::string(c.less ? "perplexity" : "points of 100"),
                    "documents, unpaired standard errors"};
  const auto x = measured(results, trained_as(at, lazy.model), c),
             y = measured(results, trained_as(at, other.model), c);
  if (!x || !y)
    return out.push_back(undecided(
        claim,
        fmt::format(
            "the task {} was not evaluated: not in --data, longer than the model reads, or not known to this version",
            c.task)));
  if (!x->has_error || !y->has_error)
    return out.push_back(undecided(claim, "lazy eval states no standard error for this metric"));
  const double scale = c.less ? 1 : 100;
  out.push_back(judge_sign(
      claim, normal_interval(scale * (x->value - y->value), scale * std::hypot(x->error, y->error), x->documents),
      a > b ? ExpectedSign::positive : ExpectedSign::negative));
}

// The held-out losses of `a` and `b`, expected in the order of their published Wiki. ppl.
Finding compare_losses(const Results& results, const Scale& at, const PublishedRow& a, const PublishedRow& b) {
  const double x = a.values[0], y = b.values[0];
  return judge(
      {fmt::format("{}'s held-out loss is {} that of {}, as its Wiki. ppl", a.name, x < y ? "below" : "above", b.name),
       fmt::format("{:.2f} against {:.2f} (Wiki. ppl)", x, y), "nats a token", over(results, "held-out sequences")},
      results.paired_difference(trained_as(at, a.model), trained_as(at, b.model), StepKind::heldout, "loss"),
      x < y ? ExpectedSign::negative : ExpectedSign::positive, "one of the two was not measured");
}

std::vector<Finding> judge_rows(const Conditions& c, const Results& results) {
  const PublishedTable table = published_rows();
  std::vector<Finding> out;
  for (const auto& [other, title] : {std::pair{"softmax", "Transformer++ (RoPE base 1e4)"},
                                     {"softmax-rope150k", "the softmax twin at Lazy's RoPE base"}}) {
    out.push_back(judge({fmt::format("Lazy Attention's held-out loss is below that of {}", title),
                         "Lazy leads Table 1's averages", "nats a token", over(results, "held-out sequences")},
                        results.paired_difference("lazy", other, StepKind::heldout, "loss"), ExpectedSign::negative,
                        "one of the two was not measured"));
  }
  std::vector<PublishedRow> rows;  // with a model of ours, each model once
  std::set<std::string> seen;
  for (const PublishedRow& row : table.rows) {
    if (!row.model.empty() && seen.insert(trained_as(c.scale, row.model)).second) rows.push_back(row);
  }
  std::set<std::string> mixers;
  for (const Model& model : mixer_models(c.scale)) mixers.insert(model.name);
  for (const PublishedRow& row : rows) {
    if (row.model == "streaming") out.push_back(compare_losses(results, c.scale, row, table.rows.front()));
    if (mixers.contains(trained_as(c.scale, row.model)))
      out.push_back(compare_losses(results, c.scale, lazy_row(table, row), row));
  }
  for (const PublishedRow& row : rows) {
    const PublishedRow& lazy = lazy_row(table, row);
    for (size_t i = 0; i < std::size(kColumns) && row.model != lazy.model; ++i)
      compare_task(results, c.scale, lazy, row, i, out);
  }
  const std::string obstacle = c.scale.is_paper() ? "" : "another model size and training length than the paper's";
  for (const PublishedRow& row : rows) {
    for (size_t i = 0; i < std::size(kColumns); ++i) {
      const auto m = measured(results, trained_as(c.scale, row.model), kColumns[i]);
      if (!m) continue;
      const double scale = kColumns[i].less ? 1 : 100;
      const Claim claim{fmt::format("{}: {}", row.name, kColumns[i].title), fmt::format("{:.2f}", row.values[i]), "",
                        "documents"};
      const Estimate ours = normal_interval(scale * m->value, scale * m->error, m->documents);
      out.push_back(judge_value(claim, ours, row.values[i],
                                !obstacle.empty() ? obstacle
                                : m->has_error    ? ""
                                                  : "no standard error is known"));
    }
  }
  return out;
}

}  // namespace

Recipe table1() {
  return {
      "table1",
      "overall comparison on nine benchmarks",
      "paper, Table 1",
      plan_rows,
      judge_rows,
      published_rows(),
      {"Below paper scale there is one size: rows of 340M and 760M are compared with the same models. The paper cites "
       "some of its rows "
       "(Titans: MAG at 340M, LMM at 760M).",
       "StreamingLLM is Transformer++ through a cache of 4 + 508 tokens, at smaller scales of an eighth of the "
       "context.",
       "The TTT row's average is printed as 47.32; the mean of its accuracies is 49.37.",
       "acc_n is lm-evaluation-harness's acc_norm (its definition, not the chance-adjusted one in the paper's words).",
       "Tasks whose files are not below --data are left out and named."}};
}

// Table 3: how many samples each benchmark has.

namespace {

struct Set {
  const char *title, *key;
  double published;
};
constexpr Set kSets[] = {{"WikiText", "wikitext", 60634},
                         {"LAMBADA", "lambada", 60000},
                         {"PIQA", "piqa", 16113},
                         {"HellaSwag", "hellaswag", 70000},
                         {"WinoGrande", "winogrande", 44000},
                         {"ARC (easy and challenge)", "arc", 7787},
                         {"SIQA", "siqa", 15554},
                         {"BoolQ", "boolq", 15942}};

PublishedTable published_benchmarks() {
  PublishedTable t{"Paper, Table 3", {"samples"}, {}};
  for (const Set& set : kSets) t.rows.push_back({set.title, {set.published}, ""});
  return t;
}

std::vector<Finding> judge_counts(const Conditions&, const Results& results) {
  std::vector<Finding> out;
  const Json* counts = results.find("datasets");
  for (const Set& set : kSets) {
    const Claim claim{fmt::format("{} has this many samples", set.title), fmt::format("{:.0f}", set.published),
                      "samples", "counted, not sampled"};
    if (!counts || !counts->contains(set.key)) {
      out.push_back(undecided(claim, counts ? "no file of this set below --data" : "no --data DIR was given"));
      continue;
    }
    const double ours = counts->at(set.key).at("samples").get<double>();
    const std::string files = counts->at(set.key).at("files").get<std::string>();
    out.push_back(judge_count(
        claim, ours, set.published,
        ours < set.published
            ? fmt::format("the paper's figure is that of all splits together; here are {}: {:.0f}", files, ours)
            : ""));
  }
  return out;
}

}  // namespace

Recipe table3() {
  return {
      "table3",
      "sizes of the benchmarks",
      "paper, Table 3",
      [](const Conditions& c) { return Plan(c).once(StepKind::datasets, "datasets", Json::object(), "data").steps(); },
      judge_counts,
      published_benchmarks(),
      {"The paper lists the sizes of whole data sets, some rounded; what is scored is one split of each "
       "(docs/evaluation.md)."}};
}

}  // namespace lazy::repro
