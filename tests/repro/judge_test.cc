// Tests the statistical judge on synthetic values per seed with known answers.
#include "repro/judge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/error_of.h"

namespace lazy::repro {
namespace {
using testing::DoubleNear;
using testing::ElementsAre;

struct Expected {
  std::vector<double> seeds;
  double bound, low, high, p;
};

// Expected values from SciPy 1.17.1, for seeds x and a bound b:
//   r = scipy.stats.ttest_1samp(x, b); r.confidence_interval(0.95); r.pvalue
TEST(Judge, IntervalsAndP_MatchSciPy) {
  const Expected all[] = {{{-0.031, -0.042, -0.028, -0.037}, 0, -0.0444371854033, -0.0245628145967, 0.00158803206029},
                          {{0.012, -0.009, 0.004, -0.011}, 0, -0.0183824894793, 0.0163824894793, 0.86640692309},
                          {{-0.031, -0.042, -0.028, 0.37}, 0, -0.254054626481, 0.388554626481, 0.552992979303},
                          {{-0.03, -0.05}, 0, -0.167062047362, 0.0870620473617, 0.155958260755},
                          {{0.061, 0.072, 0.055}, 0.1, 0.0412492309493, 0.084084102384, 0.0173169906609}};
  for (const Expected& e : all) {
    const UnitEstimate ours = over_units(e.seeds, below(e.bound));
    ASSERT_TRUE(ours.interval && ours.p);
    EXPECT_NEAR(ours.interval->low, e.low, 1e-10);
    EXPECT_NEAR(ours.interval->high, e.high, 1e-10);
    EXPECT_NEAR(*ours.p, e.p, 1e-10);
    EXPECT_EQ(*ours.p, *over_units(e.seeds, above(e.bound)).p);
  }
}

// A region with two bounds: if the mean is outside of the region, the p-value of the nearer bound is used, otherwise
// the larger p-value.
TEST(Judge, RegionWithTwoBounds_UsesTheRelevantBound) {
  const std::vector<double> seeds{0.49, 0.52, 0.505};
  EXPECT_NEAR(*over_units(seeds, {0.45, 0.55}).p, 0.035098718646, 1e-10);  // ttest_1samp(x, 0.55); 0.45: 0.0239
  EXPECT_NEAR(*over_units(seeds, {0.1, 0.45}).p, 0.0239078396423, 1e-10);
  EXPECT_NEAR(*over_units(seeds, {0.55, 9}).p, 0.035098718646, 1e-10);
}

Verdict verdict(const std::vector<double>& seeds, const Region& region, double times = 1) {
  const UnitEstimate e = over_units(seeds, region);
  return decide(e, {region}, times * e.p.value_or(1)).verdict;
}

TEST(Judge, Decide_HandlesEffectsOutliersAndTies) {
  const std::vector<double> effect{-0.031, -0.042, -0.028, -0.037};
  EXPECT_EQ(verdict(effect, below(0)), Verdict::reproduced);
  EXPECT_EQ(verdict(effect, above(0)), Verdict::refuted);
  EXPECT_EQ(verdict(effect, below(-0.03)), Verdict::open) << "the interval contains the bound";
  EXPECT_EQ(verdict({0.012, -0.009, 0.004, -0.011}, below(0)), Verdict::open);
  EXPECT_EQ(verdict({-0.031, -0.042, -0.028, 0.37}, below(0)), Verdict::open) << "one of four seeds is an outlier";
  EXPECT_EQ(verdict({-0.031}, below(0)), Verdict::open);
  EXPECT_EQ(verdict({}, below(0)), Verdict::open);
  EXPECT_EQ(verdict({-0.03, -0.05}, below(0)), Verdict::open)
      << "Student's t with one degree of freedom gives a wide interval";
  EXPECT_EQ(verdict({0, 0, 0}, below(0)), Verdict::open) << "a difference of zero does not decide the claim";
  EXPECT_EQ(verdict({-0.03125, -0.03125, -0.03125}, below(0)), Verdict::open)
      << "equal values for all seeds have no variance";
  const Decision agree = decide(over_units({1.0 / 3270, 1.0 / 3270}, below(0)), {below(0)}, 0);
  EXPECT_EQ(agree.verdict, Verdict::open);
  EXPECT_THAT(agree.reason, Names({"seeds"}));
  EXPECT_EQ(verdict({-0.03, std::nan(""), -0.04}, below(0)), Verdict::open);
  EXPECT_THAT(decide(over_units({-0.031}, below(0)), {below(0)}, 1).reason, Names({"seed"}));
}

TEST(Judge, Reason_NamesTheBound) {
  const auto reason = [](const std::vector<double>& seeds, const Region& region) {
    return decide(over_units(seeds, region), {region}, 0).reason;
  };
  EXPECT_THAT(reason({-1, -1.1}, below(0.5)), Names({"below", "0.5"}));
  EXPECT_THAT(reason({-1, -1.1}, above(0.5)), Names({"below", "0.5"}));
  EXPECT_THAT(reason({2, 2.1}, above(0.5)), Names({"above", "0.5"}));
  EXPECT_THAT(reason({2, 2.01}, {1, 3}), Names({"between", 1, 3}));
  EXPECT_THAT(reason({2, 2.01}, {3, 4}), Names({"outside", 3, 4}));
  EXPECT_THAT(reason({2, 2.1}, above(2)), Names({2}));
  EXPECT_THAT(reason({2, 2.1}, {2, 9}), Names({"bound"}));
}

TEST(Judge, TooFewTexts_DecideNothing) {
  const Rule rule{.region = below(0), .least = 8, .units = "texts"};
  const std::vector<double> seven{-1, -1.1, -1.2, -0.9, -1, -1.1, -1.2};
  const UnitEstimate few = over_units(seven, below(0));
  EXPECT_EQ(decide(few, rule, 0).verdict, Verdict::open);
  EXPECT_THAT(decide(few, rule, 0).reason, Names({"texts", 7, 8}));
  std::vector<double> eight = seven;
  eight.push_back(-1);
  EXPECT_EQ(decide(over_units(eight, below(0)), rule, 0).verdict, Verdict::reproduced);
}

// A value within 10 % of the published value is treated as reproduced, even if the confidence interval is very narrow.
TEST(Judge, PreciseValue_WithinToleranceIsReproduced) {
  const Region tenth{0.9 * 0.5958, 1.1 * 0.5958};
  EXPECT_EQ(verdict({0.5990, 0.5991, 0.5992}, tenth), Verdict::reproduced);
  EXPECT_EQ(verdict({0.70, 0.701, 0.702}, tenth), Verdict::refuted);
  EXPECT_EQ(verdict({0.60, 0.66, 0.70}, tenth), Verdict::open);
}

TEST(Judge, RoundsTo_ComparesPrintedDigits) {
  EXPECT_TRUE(rounds_to(17.8464, "17.846"));
  EXPECT_FALSE(rounds_to(17.8466, "17.846"));
  EXPECT_TRUE(rounds_to(28.0149, "28.01"));
  EXPECT_TRUE(rounds_to(0.74, "0.7"));
  EXPECT_TRUE(rounds_to(16113, "16113"));
  EXPECT_FALSE(rounds_to(16112, "16113"));
  EXPECT_FALSE(rounds_to(NAN, "2"));
}

TEST(Judge, Equal_WithinMargin) {
  const Rule rule{.region = below(0), .equal_within = 0.005};
  EXPECT_EQ(decide(over_units({-0.001, -0.0012, -0.0011}, below(0)), rule, 0.001).verdict, Verdict::equal);
  EXPECT_EQ(decide(over_units({-0.011, -0.012, -0.0115}, below(0)), rule, 0.001).verdict, Verdict::reproduced);
}

TEST(Judge, Holm_StepsDown) {
  EXPECT_THAT(holm({0.01, 0.04, 0.03}),
              ElementsAre(DoubleNear(0.03, 1e-12), DoubleNear(0.06, 1e-12), DoubleNear(0.06, 1e-12)));
  EXPECT_THAT(holm({1, 0.5}), ElementsAre(1, 1));
  EXPECT_THAT(holm({}), ElementsAre());
}

TestedClaim claim(const std::vector<double>& seeds) {
  TestedClaim out;
  out.finding.claim = "c";
  if (!seeds.empty()) out.finding.estimate = over_units(seeds, below(0));
  out.rule = Rule{below(0)};
  return out;
}

// p = 0.0016 stays below 0.05 after the Holm correction with up to 30 further claims without a measurement, but not
// with 31.
TEST(Judge, ClaimsOfPage_ShareOneCorrection) {
  const std::vector<double> effect{-0.031, -0.042, -0.028, -0.037};
  for (const auto& [others, expected] :
       {std::pair{0, Verdict::reproduced}, {30, Verdict::reproduced}, {31, Verdict::open}}) {
    std::vector<TestedClaim> page(static_cast<size_t>(others), claim({}));
    page.push_back(claim(effect));
    const std::vector<Finding> judged = judge_page(page);
    EXPECT_EQ(judged.back().verdict, expected) << others;
    EXPECT_NEAR(*judged.back().adjusted_p, (others + 1) * 0.00158803206029, 1e-9);
    if (others > 0) {
      EXPECT_EQ(judged.front().verdict, Verdict::open);
    }
  }
  std::vector<TestedClaim> described(40, claim({}));
  for (TestedClaim& c : described) c.rule.reset();
  described.push_back(claim(effect));
  EXPECT_EQ(judge_page(described).back().verdict, Verdict::reproduced)
      << "findings without a rule do not count in the correction";
  // The correction also applies to refutations.
  std::vector<TestedClaim> page(31, claim({}));
  page.push_back(claim({0.031, 0.042, 0.028, 0.037}));
  EXPECT_EQ(judge_page(page).back().verdict, Verdict::open);
  EXPECT_EQ(judge_page({page.back()}).back().verdict, Verdict::refuted);
  // Claims of a different family do not affect the correction.
  for (size_t n = 0; n < 20; ++n) page[n].finding.family = "(a)";
  const std::vector<Finding> apart = judge_page(page);
  EXPECT_EQ(apart.back().verdict, Verdict::refuted);
  EXPECT_NEAR(*apart.back().adjusted_p, 12 * 0.00158803206029, 1e-9);
}

}  // namespace
}  // namespace lazy::repro
