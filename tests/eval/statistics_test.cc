// Tests two things: random numbers must match Python, and standard errors must match lm-evaluation-harness.
#include <gtest/gtest.h>

#include "core/checksum.h"
#include "eval/metrics.h"
#include "eval/python.h"
#include "harness.h"

namespace lazy::eval {

TEST(PythonRandom, Draws_MatchPython) {
  const auto expected = python_output(R"(
import json, random, sys
out = []
for seed in (0, 1, 1234, 2**32 - 1, 2**32 + 7):
    r = random.Random(seed)
    entry = {'seed': seed, 'random': [r.random() for _ in range(700)]}
    # Small pools, Python's switch to a set of what was drawn (21 and 21 + 4 ** n), large ones.
    cases = [(1, 1), (10, 10), (21, 5), (22, 5), (85, 6), (86, 6), (1000, 25), (40000, 6), (300, 100)]
    entry['sample'] = [[n, k, r.sample(range(n), k)] for n, k in cases]
    out.append(entry)
json.dump(out, open(sys.argv[1], 'w'))
)");
  for (const auto& entry : expected) {
    PythonRandom random(entry["seed"].get<uint64_t>());
    for (const auto& value : entry["random"]) ASSERT_EQ(random.random(), value.get<double>());
    for (const auto& one : entry["sample"])
      EXPECT_EQ(random.sample(one[0], one[1]), one[2].get<std::vector<size_t>>()) << one[0] << " " << one[1];
  }
}

TEST(Sha256, Digest_MatchesKnownValues) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const auto expected = python_output(R"(
import hashlib, json, sys
json.dump([hashlib.sha256(b'x' * n).hexdigest() for n in range(200)], open(sys.argv[1], 'w'))
)");
  for (size_t n = 0; n < 200; ++n) EXPECT_EQ(sha256_hex(std::string(n, 'x')), expected[n].get<std::string>()) << n;
}

std::vector<double> some_values(size_t n) {
  std::vector<double> values;
  for (size_t i = 0; i < n; ++i) values.push_back(-static_cast<double>((i * i * 37 + i * 11) % 101) / 17);
  return values;
}

TEST(StandardError, StandardError_MatchesHarness) {
  LAZY_NEEDS_HARNESS();
  const auto values = some_values(23);
  const auto expected = harness_output(R"(
import json, os, sys
os.environ['DISABLE_MULTIPROC'] = '1'
from lm_eval.api.metrics import bootstrap_stderr, mean_stderr, perplexity
values = json.load(open(sys.argv[2]))
json.dump([mean_stderr(values), bootstrap_stderr(perplexity, values, iters=3000), )"
                                       R"(bootstrap_stderr(perplexity, values[:2], iters=100)],
          open(sys.argv[1], 'w'))
)",
                                       nlohmann::json(values).dump());
  EXPECT_NEAR(mean_stderr(values), expected[0].get<double>(), 1e-14);
  EXPECT_NEAR(perplexity_stderr(values, 3000) / expected[1].get<double>(), 1, 1e-12);
  EXPECT_NEAR(perplexity_stderr({values[0], values[1]}, 100) / expected[2].get<double>(), 1, 1e-12);
}

// The expected values were computed by the harness and recorded here, so that the test runs without the harness.
TEST(StandardError, StandardError_MatchesRecordedValues) {
  const auto values = some_values(23);
  EXPECT_NEAR(mean_stderr(values), 0.31318462048157686, 1e-14);
  EXPECT_NEAR(perplexity_stderr(values, 3000), 6.806284903035416, 1e-11);
}

Task choice_task() {
  Task task;
  task.metrics = {"acc", "acc_norm", "acc_bytes"};
  return task;
}

TEST(Metrics, DocumentMetrics_HandleTiesNaNsAndLengths) {
  Question q;
  q.choices = {"ééé", "abcd", ""};
  q.label = 0;
  EXPECT_EQ(document_metrics(choice_task(), q, {{-3}, {-3}, {-9}}),
            // The first two choices have equal scores, so acc takes the first one. acc_norm divides by 3 and 4
            // characters and prefers choice 1. acc_bytes divides by 6 and 4 bytes and prefers choice 0.
            (std::vector<double>{1, 0, 1}));
  EXPECT_EQ(document_metrics(choice_task(), q, {{-6}, {-7}, {-9}}),
            // acc_norm divides the scores by the characters (-6/3, -7/4), acc_bytes by the bytes (-6/6, -7/4).
            (std::vector<double>{1, 0, 1}));
  q.label = 2;
  // the empty choice has -1/0 = -inf per character
  EXPECT_EQ(document_metrics(choice_task(), q, {{-6}, {-7}, {-1}}), (std::vector<double>{1, 0, 0}));
  EXPECT_EQ(document_metrics(choice_task(), q, {{-6}, {-7}, {0}}),
            // the empty choice has 0/0 = NaN per character, which numpy's argmax treats as the maximum
            (std::vector<double>{1, 1, 1}));
}

TEST(Metrics, Aggregate_GivesMeansAndChance) {
  const std::vector<DocumentResult> documents = {
      {{1, 0, 0}, 0, 0, 4, 2}, {{1, 1, 0}, 0, 0, 4, 2}, {{0, 1, 0}, 0, 0, 2, 1}};
  const auto metrics = aggregate(choice_task(), documents);
  EXPECT_DOUBLE_EQ(metrics[0].value, 2.0 / 3);
  EXPECT_DOUBLE_EQ(*metrics[0].standard_error, 1.0 / 3);
  EXPECT_DOUBLE_EQ(*metrics[2].standard_error, 0);
  EXPECT_FALSE(aggregate(choice_task(), {documents[0]})[0].standard_error.has_value());
  const auto chance = *chance_of(choice_task(), documents);
  EXPECT_DOUBLE_EQ(chance.random, 1.0 / 3);
  EXPECT_DOUBLE_EQ(chance.majority, 2.0 / 3);
}

}  // namespace lazy::eval
