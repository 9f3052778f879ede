#include "eval/compare/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/math/special_functions/beta.hpp>
#include <cmath>

#include "core/file.h"
#include "eval/compare/paired_test.h"
#include "support/error_of.h"

namespace lazy::eval {
namespace fs = std::filesystem;
using nlohmann::json;

// The expected values were computed with scipy 1.17.1: scipy.special.betainc, and 2 * scipy.stats.t.sf for two-sided
// p-values.
TEST(PairedTests, Distributions_MatchScipy) {
  struct Beta {
    double a, b, x, expected;
  };
  for (const auto& [a, b, x, expected] : std::vector<Beta>{{0.5, 0.5, 0.3, 0.36901011956554536},
                                                           {1, 1, 0.25, 0.25},
                                                           {2, 3, 0.7, 0.9163},
                                                           {5, 0.5, 0.99, 0.75715810910156234},
                                                           {50, 0.5, 0.9, 0.001204149832559813},
                                                           {633.5, 0.5, 0.997, 0.051093327414660931},
                                                           {5021, 0.5, 0.9996, 0.04503299194210194},
                                                           {10, 10, 0.5, 0.5},
                                                           {0.5, 5021, 1e-4, 0.68370369067477499}}) {
    EXPECT_NEAR(boost::math::ibeta(a, b, x) / expected, 1, 1e-10) << a << " " << b << " " << x;
  }
  EXPECT_EQ(boost::math::ibeta(2, 3, 0), 0);
  EXPECT_EQ(boost::math::ibeta(2, 3, 1), 1);
  struct Student {
    double t, degrees, expected;
  };
  for (const auto& [t, degrees, expected] : std::vector<Student>{{0, 5, 1},
                                                                 {1, 1, 0.5},
                                                                 {2.5706, 5, 0.049998897880077948},
                                                                 {1.96, 10041, 0.050023406999013163},
                                                                 {-3.3, 1837, 0.0009853496024437372},
                                                                 {8, 100, 2.2728648077280694e-12},
                                                                 {0.01, 3.7, 0.99253692701185936},
                                                                 {40, 20, 1.4574696554310749e-20}}) {
    EXPECT_NEAR(student_two_sided(t, degrees) / expected, 1, 1e-10) << t << " " << degrees;
  }
}

std::vector<PairedDifference> differences(const std::vector<double>& first, const std::vector<double>& second) {
  std::vector<PairedDifference> result;
  for (size_t i = 0; i < first.size(); ++i) result.push_back({second[i] - first[i]});
  return result;
}

const std::vector<double> kFirst = {1, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0, 1}, kSecond = {1, 1, 1, 0, 1, 0, 1, 1, 1, 1, 1, 1};

// Expected values from scipy: for one benchmark, scipy.stats.ttest_rel(second, first). For two benchmarks with the
// differences d1 and d2, the values are from scipy.stats.ttest_ind(d1, -d2, equal_var=False). It tests mean(d1) +
// mean(d2), which is twice the mean difference of the benchmarks and has the same p-value.
TEST(PairedTests, TTest_MatchesScipy) {
  const auto d1 = differences(kFirst, kSecond);
  TTest test = paired_t_test({d1});
  EXPECT_NEAR(test.t, 1.3932610920384718, 1e-12);
  EXPECT_NEAR(test.p, 0.19105429809656932, 1e-12);
  EXPECT_EQ(test.degrees, 11);
  test = paired_t_test({differences({-2.5, -1.25, -7.0, -3.5, -0.75}, {-2.25, -1.5, -6.0, -3.0, -0.5})});
  EXPECT_NEAR(test.t, 1.7232808737106582, 1e-12);
  EXPECT_NEAR(test.p, 0.15993479883742162, 1e-12);
  const PairedBenchmarks two = {d1, differences({0, 0, 0, 1, 0, 0, 0}, {1, 0, 0, 0, 1, 1, 0})};
  test = paired_t_test(two);
  EXPECT_NEAR(test.t, 1.5878357631902218, 1e-12);
  EXPECT_NEAR(test.p, 0.14126723078852274, 1e-12);
  EXPECT_NEAR(test.degrees, 10.753841520193816, 1e-11);
  EXPECT_NEAR(mean_difference(two), 0.26785714285714285, 1e-15);
  // Each document now has 250 units (for example words). This divides the estimate by 250 but does not change the
  // p-value.
  auto words = d1;
  for (auto& document : words) document.units = 250;
  EXPECT_NEAR(paired_t_test({words}).p, 0.19105429809656932, 1e-12);
  EXPECT_NEAR(mean_difference({words}) * 250, mean_difference({d1}), 1e-15);
}

TEST(PairedTests, TTest_HandlesEdgeCases) {
  EXPECT_EQ(paired_t_test({differences(kFirst, kFirst)}).p, 1);
  EXPECT_EQ(paired_t_test({differences({0, 0, 0}, {1, 1, 1})}).p, 0);
  EXPECT_TRUE(std::isnan(paired_t_test({differences({0}, {1})}).p));
}

// For a large sample, the bootstrap interval must be close to the normal approximation of the mean: mean +- 1.96 s /
// sqrt(n).
TEST(PairedTests, BootstrapInterval_MatchesTheory) {
  std::vector<PairedDifference> documents;
  double mean = 0, squares = 0;
  for (int i = 0; i < 2000; ++i) {
    const double d = (i * 7919 % 13 == 0) - (i * 104729 % 17 == 0);
    documents.push_back({d});
    mean += d / 2000;
    squares += d * d / 2000;
  }
  const double error = std::sqrt((squares - mean * mean) / 2000);
  const ConfidenceInterval interval = paired_bootstrap({documents}, 0.95, 10000, 42);
  // With 10,000 resamples, each end of the interval has a random error of about 0.03 standard errors of the mean.
  EXPECT_NEAR((interval.low - mean) / error, -1.96, 0.15);
  EXPECT_NEAR((interval.high - mean) / error, 1.96, 0.15);
  const ConfidenceInterval again = paired_bootstrap({documents}, 0.95, 10000, 42);
  EXPECT_EQ(interval.low, again.low);
  EXPECT_EQ(interval.high, again.high);
  const auto few = [&](uint64_t seed) { return paired_bootstrap({documents}, 0.95, 20, seed).low; };
  EXPECT_TRUE(few(1) != few(2) || few(2) != few(3));
  // The statistic is the sum of the differences divided by the sum of the units. If every document has the same
  // difference per unit, the interval has zero width.
  std::vector<PairedDifference> even;
  for (double words : {10.0, 300.0, 7.0, 45.0}) even.push_back({0.25 * words, words});
  const ConfidenceInterval none = paired_bootstrap({even});
  EXPECT_NEAR(none.low, 0.25, 1e-12);
  EXPECT_NEAR(none.high, 0.25, 1e-12);
}

class CompareFolders : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(root_); }
  void TearDown() override { fs::remove_all(root_); }

  json sample(int64_t id, const json& metrics) {
    json record = {{"doc_id", id},
                   {"doc_hash", "d" + std::to_string(id)},
                   {"prompt_hash", "p" + std::to_string(id)},
                   {"target_hash", "t"}};
    record["metrics"] = json::array();
    for (const auto& [name, value] : metrics.items()) {
      record["metrics"].push_back(name);
      record[name] = value;
    }
    return record;
  }

  // Writes the results and samples of one task to a folder in root/model, with the file names that the harness uses.
  fs::path write(const std::string& model, const std::string& task, const std::vector<json>& samples,
                 const std::string& version = "1.0", const std::string& date = "2026-01-02T03-04-05.000006") {
    const fs::path folder = root_ / model;
    fs::create_directories(folder);
    const json results = {
        {"results", {{task, json::object()}}}, {"versions", {{task, version}}}, {"n-shot", {{task, 0}}}};
    write_file_atomic(folder / ("results_" + date + ".json"), results.dump());
    std::string lines;
    for (const json& s : samples) lines += s.dump() + "\n";
    write_file_atomic(folder / ("samples_" + task + "_" + date + ".jsonl"), lines);
    return folder;
  }

  std::vector<json> accuracies(const std::vector<double>& values) {
    std::vector<json> result;
    for (size_t i = 0; i < values.size(); ++i)
      result.push_back(sample(static_cast<int64_t>(i), {{"acc", values[i]}, {"acc_norm", 1 - values[i]}}));
    return result;
  }

  std::string message(const std::string& a, const std::string& b) {
    return error_of([&] { compare(read_result_folder(root_ / a), read_result_folder(root_ / b), {.resamples = 10}); });
  }
  std::string path(const std::string& folder) { return (root_ / folder).string(); }

  fs::path root_ = fs::path(testing::TempDir()) / ("compare_" + std::to_string(::getpid()));
};

TEST_F(CompareFolders, Compare_GivesTasksAverageAndPerplexities) {
  const std::string later = "2026-01-02T03-04-06.000000", last = "2026-01-02T03-04-07.000000";
  write("a", "piqa", accuracies(kFirst));
  write("b", "piqa", accuracies(kSecond));
  // the compared metric is acc_norm, which is 1 - acc here
  write("a", "hellaswag", accuracies({1, 1, 1, 0, 0, 0, 0}), "1.0", later);
  write("b", "hellaswag", accuracies({0, 1, 1, 1, 0, 0, 0}), "1.0", later);
  write("a", "wikitext",
        {sample(0, {{"word_perplexity", {-900.0, 300}}, {"bits_per_byte", {-900.0, 999}}}),
         sample(1, {{"word_perplexity", {-40.0, 10}}, {"bits_per_byte", {-40.0, 33}}})},
        "2.0", last);
  write("b", "wikitext",
        {sample(0, {{"word_perplexity", {-870.0, 300}}, {"bits_per_byte", {-870.0, 999}}}),
         sample(1, {{"word_perplexity", {-39.0, 10}}, {"bits_per_byte", {-39.0, 33}}})},
        "2.0", last);
  const ModelComparison result = compare(read_result_folder(root_ / "a"), read_result_folder(root_ / "b"));
  ASSERT_EQ(result.rows.size(), 6u);  // acc and acc_norm of two tasks, word_perplexity, and the average
  const auto row = [&](const std::string& task, const std::string& metric) {
    for (const Comparison& r : result.rows) {
      if (r.task == task && r.metric == metric) return r;
    }
    ADD_FAILURE() << task << " " << metric;
    return Comparison{};
  };
  const Comparison piqa = row("piqa", "acc"), average = row("average", "accuracy"),
                   words = row("wikitext", "word_perplexity");
  EXPECT_NEAR(piqa.first, 7 / 12.0, 1e-15);
  EXPECT_NEAR(piqa.second, 10 / 12.0, 1e-15);
  EXPECT_NEAR(piqa.test.p, 0.19105429809656932, 1e-12);
  EXPECT_FALSE(piqa.significant());
  EXPECT_LE(piqa.interval.low, piqa.difference);
  EXPECT_GE(piqa.interval.high, piqa.difference);
  EXPECT_NEAR(average.first, (7 / 12.0 + 4 / 7.0) / 2, 1e-15);
  EXPECT_NEAR(average.difference, (3 / 12.0 + 0) / 2, 1e-15);
  EXPECT_EQ(average.documents, 19);
  EXPECT_NEAR(words.first, std::exp(940 / 310.0), 1e-12);
  EXPECT_NEAR(words.second, std::exp(909 / 310.0), 1e-12);
  EXPECT_NEAR(words.difference, -31 / 310.0, 1e-12);
  EXPECT_TRUE(words.logarithm);

  const CompareOptions options;
  const std::string table = to_table({result}, options);
  EXPECT_THAT(table, testing::HasSubstr("|piqa     |acc            |12| 0.5833| 0.8333|   +0.2500|"));
  EXPECT_THAT(table, Names({options.resamples, options.seed}));
  const auto as_json = to_json({result}, options);
  EXPECT_EQ(as_json["comparisons"][0]["results"]["piqa"]["acc"]["documents"], 12);
  EXPECT_EQ(as_json["comparisons"][0]["results"]["average"]["accuracy"]["significant"], false);
}

TEST_F(CompareFolders, SignificantDifference_HasAsterisk) {
  std::vector<double> worse(60, 0.0), better(60, 1.0);
  for (size_t i = 0; i < 60; i += 10) better[i] = 0;
  write("a", "boolq", accuracies(worse));
  write("b", "boolq", accuracies(better));
  const ModelComparison result = compare(read_result_folder(root_ / "a"), read_result_folder(root_ / "b"));
  EXPECT_LT(result.rows[0].test.p, 1e-20);
  EXPECT_GT(result.rows[0].interval.low, 0.7);
  EXPECT_THAT(to_table({result}, {}), testing::ContainsRegex("\\|boolq *\\|acc .*\\|\\*\\|"));
}

TEST_F(CompareFolders, RepeatedTask_UsesLatestRun) {
  write("a", "piqa", accuracies({0, 0, 0}), "1.0", "2026-01-02T03-04-05.000006");
  write("a", "piqa", accuracies({1, 1, 1}), "1.0", "2026-02-02T03-04-05.000006");
  const ResultFolder folder = read_result_folder(root_ / "a");
  EXPECT_EQ(folder.tasks.at("piqa").documents.at(0).metrics.at("acc").value, 1);
}

TEST_F(CompareFolders, UnpairableResults_AreErrors) {
  write("a", "piqa", accuracies({1, 0, 1}));
  write("limit", "piqa", accuracies({1, 0}));
  write("version", "piqa", accuracies({1, 0, 1}), "2.0");
  write("task", "boolq", accuracies({1, 0, 1}));
  auto others = accuracies({1, 0, 1});
  others[1]["doc_hash"] = "another";
  write("columns", "piqa", others);
  others[1]["prompt_hash"] = "another";
  write("documents", "piqa", others);
  others[1].erase("acc");
  write("field", "piqa", others);
  write("two/x", "piqa", accuracies({1, 0, 1}));
  write("two/y", "piqa", accuracies({1, 0, 1}));
  fs::create_directories(root_ / "empty");
  EXPECT_EQ(message("a", "columns"), "");  // the samples have different additional fields but the same question
  EXPECT_THAT(message("a", "limit"), Names({"piqa", "--limit", 3, path("a"), 2, path("limit")}));
  EXPECT_THAT(message("a", "version"),
              IsMessage("eval --compare: piqa: expected the same version of the task in both folders, found 1.0 in " +
                        path("a") + " and 2.0 in " + path("version")));
  EXPECT_THAT(message("a", "task"), Names({path("a"), path("task")}));
  EXPECT_THAT(message("a", "documents"), Names({"piqa", 1, path("a"), path("documents")}));
  EXPECT_THAT(message("a", "field"), Names({"samples_piqa_2026-01-02T03-04-05.000006.jsonl:2", "acc"}));
  EXPECT_THAT(message("a", "two"), Names({path("two"), "piqa", path("two/x"), path("two/y")}));
  EXPECT_THAT(message("a", "empty"), Names({path("empty"), "--log-samples"}));
  EXPECT_THAT(message("a", "absent"), Names({path("absent")}));
  fs::remove(root_ / "a" / "samples_piqa_2026-01-02T03-04-05.000006.jsonl");
  EXPECT_THAT(message("a", "limit"), Names({path("a"), "--log-samples"}));
}

}  // namespace lazy::eval
