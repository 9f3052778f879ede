// Tests the claims of the evidence and their verdicts on synthetic records whose statistics are computed by hand.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "core/file.h"
#include "repro/evidence/figures.h"
#include "repro/evidence/page.h"
#include "repro/evidence/record.h"
#include "support/error_of.h"
#include "support/run_command.h"

namespace lazy::repro {
namespace {
namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

// Names of cells: s: softmax, e: elastic; b: with distance bias, r: with the larger RoPE base.
constexpr const char* kProtocol = R"(
[protocol]
version = 1
extends = "repro-tiny.toml"
blocks = ["B", "D", "E"]
[cells]
s = []
sb = []
sr = []
sbr = []
e = []
eb = []
er = []
ebr = []
[B]
question = "?"
cells = ["s", "sb", "sr", "sbr", "e", "eb", "er", "ebr"]
seeds = [1, 2, 3]
tokens = 1000
[D]
question = "?"
cells = ["s"]
seeds = [1, 2, 3]
tokens = 1000
[E]
question = "?"
cells = ["s", "e"]
seeds = [1, 2]
tokens = 3000
snapshot_every = 1000
)";

constexpr const char* kDesign = R"(
[design]
block = "B"
factors = ["normalizer", "bias", "base"]
low = ["softmax", "none", "1e4"]
high = ["elastic", "128", "1.5e5"]
[design-cells]
s = ["softmax", "none", "1e4"]
sb = ["softmax", "128", "1e4"]
sr = ["softmax", "none", "1.5e5"]
sbr = ["softmax", "128", "1.5e5"]
e = ["elastic", "none", "1e4"]
eb = ["elastic", "128", "1e4"]
er = ["elastic", "none", "1.5e5"]
ebr = ["elastic", "128", "1.5e5"]
[effects]
v = ["measures.v"]
[[head-start]]
block = "B"
tokens = [50, 150]
over = ["e"]
under = ["s"]
)";

// A claims file with one primary claim, x.
std::string claim(const std::string& keys) {
  return std::string(
             "[report]\nparameters = \"55M\"\nclaims = [\"x\"]\n[x]\ntext = \"t\"\nrule = \"r\"\nprimary = true\n"
             "block = \"B\"\nmeasure = \"measures.v\"\n") +
         keys + kDesign;
}

constexpr const char* kDifference = "form = \"difference\"\nover = [\"e\"]\nunder = [\"s\"]\nside = \"below\"\n";

class EvidenceReport : public testing::Test {
 protected:
  const fs::path path_ =
      fs::path(testing::TempDir()) /
      fmt::format("evidence_report_{}{}", ::getpid(), testing::UnitTest::GetInstance()->current_test_info()->name());
  const Protocol protocol_ = read_protocol(kProtocol, "p.toml");

  EvidenceReport() { fs::create_directories(path_); }
  ~EvidenceReport() override { fs::remove_all(path_); }

  void record(const std::string& id, double v, const Json& more = Json::object(), double earlier = 0) const {
    for (const EvidenceRun& run : protocol_.runs()) {
      if (run.id() != id) continue;
      Json json = {{"format", kEvidenceFormat},
                   {"protocol", {{"version", 1}}},
                   {"block", run.block},
                   {"cell", run.cell},
                   {"seed", run.seed},
                   {"overrides", run.overrides},
                   {"device", "cpu"},
                   {"tokens", run.tokens},
                   {"seconds", {{"training", 1}, {"measuring", 1}}},
                   {"training", {{"loss", {1.0}}}},
                   {"measures", {{"heldout", {{"loss", 1.0}}}, {"v", v}, {"earlier", earlier}}}};
      json.update(more);
      std::ofstream(record_path(path_, run)) << json.dump();
      return;
    }
    FAIL() << id;
  }
  // Records values of one cell of block B for seeds 1, 2, ...
  void seeds(const std::string& cell, const std::vector<double>& values) const {
    for (size_t i = 0; i < values.size(); ++i) record(fmt::format("B.{}.seed{}", cell, i + 1), values[i]);
  }
  ClaimVerdict verdict(const std::string& keys) const {
    return judge_claims(read_claims(claim(keys), "claims.toml", protocol_), protocol_, read_records(path_, protocol_))
        .at(0);
  }
  // Records all cells of B for one seed, from an additive model with signs -1 and 1: level, main effects, interactions.
  void design(int64_t seed, double normalizer) const {
    for (const std::string cell : {"s", "sb", "sr", "sbr", "e", "eb", "er", "ebr"}) {
      const double n = cell[0] == 'e' ? 1 : -1, b = cell.find('b') != std::string::npos ? 1 : -1,
                   r = cell.find('r') != std::string::npos ? 1 : -1;
      record(fmt::format("B.{}.seed{}", cell, seed), 10 * static_cast<double>(seed) + normalizer * n + 0.5 * b -
                                                         0.25 * r + 0.125 * n * b + 0.03125 * n * b * r);
    }
  }
};

// The differences -0.03, -0.04, -0.05 have mean -0.04, standard error 0.01 / sqrt(3) = 0.0057735 and t(0.975, 2) =
// 4.302653, so half of the interval is 0.0248414. t = 6.928203, and with two degrees of freedom p = 1 - t / sqrt(2 +
// t^2) = 0.0202041.
TEST_F(EvidenceReport, PairedDifference_OverThreeSeeds) {
  seeds("s", {3, 4, 5});
  seeds("e", {2.97, 3.96, 4.95});
  const ClaimVerdict v = verdict(std::string(kDifference) + "bound = 0\n");
  EXPECT_NEAR(v.effect.value, -0.04, 1e-9);
  ASSERT_TRUE(v.effect.interval && v.adjusted);
  EXPECT_NEAR(v.effect.interval->low, -0.0648414, 1e-6);
  EXPECT_NEAR(v.effect.interval->high, -0.0151586, 1e-6);
  EXPECT_NEAR(*v.adjusted, 0.0202041, 1e-6);
  EXPECT_EQ(v.verdict, Verdict::reproduced);
  EXPECT_THAT(v.note, Names({"55M", 3}));
  EXPECT_EQ(verdict(std::string(kDifference) + "bound = -0.04\n").verdict, Verdict::open);
  EXPECT_EQ(verdict(std::string(kDifference) + "bound = -0.1\n").verdict, Verdict::refuted);
  EXPECT_EQ(verdict(std::string(kDifference) + "bound = 0\nequal_within = 0.065\n").verdict, Verdict::equal);
  EXPECT_EQ(verdict(std::string(kDifference) + "bound = 0\nequal_within = 0.064\n").verdict, Verdict::reproduced);
}

TEST_F(EvidenceReport, Difference_WithFromAndFactor) {
  record("B.s.seed1", 4, Json::object(), 3);    // rises by 1
  record("B.e.seed1", 3.7, Json::object(), 3);  // 0.7 - 0.75 * 1
  record("B.s.seed2", 5, Json::object(), 3);    // rises by 2
  record("B.e.seed2", 4.6, Json::object(), 3);  // 1.6 - 0.75 * 2
  const ClaimVerdict v = verdict(std::string(kDifference) + "bound = 0\nfrom = \"measures.earlier\"\nfactor = 0.75\n");
  EXPECT_THAT(v.effect.by_unit, ElementsAre(testing::DoubleNear(-0.05, 1e-9), testing::DoubleNear(0.1, 1e-9)));
  EXPECT_EQ(v.verdict, Verdict::open);
}

TEST_F(EvidenceReport, RatioOfMeans_IsMissingUntilAllCellsAreRecorded) {
  const char* ratio =
      "form = \"ratio\"\nover = [\"e\", \"eb\"]\nunder = [\"s\", \"sb\"]\nside = \"below\"\nbound = 0.25\n";
  EXPECT_EQ(verdict(ratio).verdict, Verdict::missing);
  const std::string without_runs = verdict(ratio).note;
  EXPECT_THAT(without_runs, Names({"55M", 0}));
  seeds("s", {0.1});
  seeds("e", {0.01});
  seeds("eb", {0.03});
  EXPECT_EQ(verdict(ratio).verdict, Verdict::missing);
  EXPECT_NE(verdict(ratio).note, without_runs) << "one of the cells has no record";
  seeds("sb", {0.3});
  const ClaimVerdict v = verdict(ratio);
  EXPECT_NEAR(v.effect.value, 0.1, 1e-9);  // 0.02 / 0.2
  EXPECT_FALSE(v.effect.interval || v.adjusted);
  EXPECT_EQ(v.verdict, Verdict::open);
  EXPECT_EQ(v.effect.by_unit.size(), 1u);
}

TEST_F(EvidenceReport, Ratio_AcrossBlocks) {
  record("B.e.seed2", 0.5);
  record("D.s.seed2", 1.5);
  EvidenceClaims claims = read_claims(
      claim("form = \"ratio\"\nover = [\"e\"]\nunder_block = \"D\"\nunder = [\"s\"]\nside = \"above\"\nbound = 2\n"),
      "claims.toml", protocol_);
  EXPECT_NEAR(judge_claims(claims, protocol_, read_records(path_, protocol_)).at(0).effect.value, 1.0 / 3, 1e-9);
}

// A contrast equals twice the coefficient of its signs.
TEST_F(EvidenceReport, Contrasts_GiveEffectsAndInteractions) {
  design(1, 1);
  design(2, 1);
  record("B.s.seed3", 1);  // an incomplete seed
  const EvidenceClaims claims = read_claims(claim(std::string(kDifference) + "bound = 0\n"), "claims.toml", protocol_);
  const EvidenceRecords records = read_records(path_, protocol_);
  const auto effect = [&](const Words& factors, double expected) {
    const auto values = contrast(claims.design, factors, {"measures.v", ""}, protocol_, records);
    ASSERT_EQ(values.size(), 2u);
    for (const double value : values) EXPECT_NEAR(value, expected, 1e-9);
  };
  effect({"normalizer"}, 2);
  effect({"bias"}, 1);
  effect({"base"}, -0.5);
  effect({"normalizer", "bias"}, 0.25);
  effect({"normalizer", "base"}, 0);
  effect({"normalizer", "bias", "base"}, 0.0625);
}

// The main effects are -0.06, -0.08, -0.10: t = 0.08 / (0.02 / sqrt(3)) = 6.928203, p = 0.0202041.
TEST_F(EvidenceReport, SignCondition_UsesAnotherBlock) {
  const char* effect =
      "form = \"effect\"\nfactors = [\"normalizer\"]\nside = \"below\"\nbound = 0\n"
      "sign_block = \"E\"\nsign_over = [\"e\"]\nsign_under = [\"s\"]\n";
  for (const auto& [seed, coefficient] : {std::pair{1, -0.03}, std::pair{2, -0.04}, std::pair{3, -0.05}})
    design(seed, coefficient);
  EXPECT_EQ(verdict(effect).verdict, Verdict::open) << "block E has no records";
  record("E.s.seed1", 3);
  record("E.e.seed1", 2.99);
  record("E.s.seed2", 3);
  record("E.e.seed2", 2.98);
  EXPECT_EQ(verdict(effect).verdict, Verdict::reproduced);
  EXPECT_NEAR(*verdict(effect).adjusted, 0.0202041, 1e-6);
  record("E.e.seed2", 3.01);
  EXPECT_EQ(verdict(effect).verdict, Verdict::open);
  EXPECT_THAT(verdict(effect).note, Names({1, 2, "E"}));
}

// The values 0.001, 0.002, 0.003 have mean 0.002, and half of the interval is 0.00248414; for the bound 0.005 t =
// 5.196152 and p = 0.0350987.
TEST_F(EvidenceReport, Bound_NeedsNoUpwardSlope) {
  const char* bound =
      "form = \"bound\"\nover = [\"e\"]\nside = \"below\"\nbound = 0.005\n"
      "slope_block = \"E\"\nslope_cells = [\"e\"]\nslope_measure = \"v\"\n";
  const auto snapshots = [](double first, double last) {
    return Json{{"snapshots", {{{"tokens", 1000}, {"v", first}}, {{"tokens", 2000}, {"v", last}}}}};
  };
  seeds("e", {0.001, 0.002, 0.003});
  EXPECT_EQ(verdict(bound).verdict, Verdict::open) << "block E has no records";
  record("E.e.seed1", 0, snapshots(0.003, 0.002));
  record("E.e.seed2", 0, snapshots(0.002, 0.002));
  const ClaimVerdict v = verdict(bound);
  EXPECT_EQ(v.verdict, Verdict::reproduced);
  EXPECT_NEAR(v.effect.interval->high, 0.00448414, 1e-7);
  EXPECT_NEAR(*v.adjusted, 0.0350987, 1e-6);
  EXPECT_THAT(v.note, Names({"55M", 3}));
  record("E.e.seed2", 0, snapshots(0.002, 0.0021));
  EXPECT_EQ(verdict(bound).verdict, Verdict::open);
  EXPECT_THAT(verdict(bound).note, Names({1, 2, "E"}));
  record("E.e.seed2", 0);
  EXPECT_THAT(error_of([&] { verdict(bound); }), Names({"E.e.seed2.json", "snapshots", 0}));
}

TEST_F(EvidenceReport, ClaimWithoutSink_IsNotTestable) {
  const std::string keys =
      std::string(kDifference) + "bound = 0\nneeds_measure = \"measures.v\"\nneeds_cells = [\"s\"]\n";
  seeds("s", {-0.03, -0.04});  // mean -0.035 + 12.7062 * 0.005 = 0.0285: the upper end is above 0
  EXPECT_EQ(verdict(keys).verdict, Verdict::missing);
  seeds("s", {-0.03, -0.04, -0.05});  // the upper end is -0.0151586
  EXPECT_EQ(verdict(keys).verdict, Verdict::not_testable);
}

TEST_F(EvidenceReport, BlockWithUnmetCondition_IsNotTestable) {
  std::string text = kProtocol;
  const std::string seeds = "[B]\n";
  text.replace(text.find(seeds), seeds.size(),
               seeds + "condition = \"s\"\ncondition_seeds = 2\ncondition_excess = 0.01\n");
  const Protocol protocol = read_protocol(text, "p.toml");
  const auto sinks = [&](int64_t seed, double excess) {
    const Json at = {{"bos", {{"excess", excess}}}, {"no_bos", {{"excess", 1.0}}}};
    record(
        fmt::format("B.s.seed{}", seed), 0,
        {{"measures", {{"v", 0}, {"heldout", {{"loss", 1.0}, {"bos_per_sequence", true}}}, {"sinks", {{"512", at}}}}}});
  };
  const auto judged = [&] {
    const std::string keys = std::string(kDifference) + "bound = 0\n";
    return judge_claims(read_claims(claim(keys), "claims.toml", protocol), protocol, read_records(path_, protocol))
        .at(0);
  };
  sinks(1, 0.004);
  EXPECT_EQ(judged().verdict, Verdict::missing) << "only one of the two required seeds is recorded";
  sinks(2, 0.01);
  EXPECT_EQ(judged().verdict, Verdict::not_testable);
  EXPECT_THAT(judged().note, Names({"s", "0.70", "1.00"}));
  sinks(2, 0.02);
  EXPECT_EQ(judged().verdict, Verdict::missing) << "the other cells still need to be trained";
}

TEST_F(EvidenceReport, PrimaryClaims_ShareOneCorrection) {
  // p = 0.0202041 together with two claims without a p: three times this p is not below 0.05.
  seeds("s", {3, 4, 5});
  seeds("e", {2.97, 3.96, 4.95});
  EvidenceClaims claims = read_claims(claim(std::string(kDifference) + "bound = 0\n"), "claims.toml", protocol_);
  EvidenceClaim other = claims.claims[0];
  other.over = {"er"};
  claims.claims.insert(claims.claims.end(), 2, other);
  const ClaimVerdict v = judge_claims(claims, protocol_, read_records(path_, protocol_)).at(0);
  EXPECT_NEAR(*v.adjusted, 0.0606123, 1e-6);
  EXPECT_EQ(v.verdict, Verdict::open);
  EXPECT_THAT(v.note, Names({"p", "0.05"}));
}

TEST_F(EvidenceReport, HeadStart_IsInterpolatedBetweenValidations) {
  const auto curve = [](double first, double last) {
    return Json{{"training", {{"loss", {1.0}}, {"validation", {{"tokens", {0, 100}}, {"loss", {first, last}}}}}}};
  };
  record("B.s.seed1", 1, curve(6, 4));
  record("B.e.seed1", 1, curve(5, 3.5));
  const EvidenceClaims claims = read_claims(claim(std::string(kDifference) + "bound = 0\n"), "claims.toml", protocol_);
  const EvidenceRecords records = read_records(path_, protocol_);
  EXPECT_THAT(head_start(claims.head_starts.at(0), 50, protocol_, records), ElementsAre(Pair(1, 4.25 - 5)));
  EXPECT_THAT(head_start(claims.head_starts.at(0), 150, protocol_, records), ElementsAre(Pair(1, -0.5)))
      << "the last validation";
}

TEST_F(EvidenceReport, Mistakes_AreNamedInTheError) {
  const auto names = [&](const std::string& keys, std::initializer_list<Token> tokens) {
    EXPECT_THAT(error_of([&] { verdict(keys); }), Names(tokens)) << keys;
  };
  const std::string good = std::string(kDifference) + "bound = 0\n";
  names(good + "bond = 1\n", {"claims.toml", "bond", "[x]", "bound"});
  names("form = \"bound\"\nover = [\"ebx\"]\nside = \"below\"\nbound = 0\n", {"over", "B", "ebx"});
  names("form = \"ratios\"\nside = \"below\"\nbound = 0\n", {"form", "ratios", "ratio"});
  names("form = \"bound\"\nover = [\"e\"]\nside = \"below\"\n", {"[x]", "bound"});
  names(good + "sign_block = \"F\"\n", {"sign_block", "B", "D", "E", "F"});
  names("form = \"ratio\"\nover = [\"e\", \"eb\"]\nunder = [\"s\"]\nside = \"below\"\nbound = 0\n",
        {"under", "over", 2, 1});
  seeds("s", {1});
  seeds("e", {1});
  names(good + "from = \"measures.nothing\"\n", {"B.e.seed1.json", "measures.nothing"});
}

TEST(EvidenceReportOfTheProject, CommittedRecords_AreRead) {
  const Protocol protocol = embedded_protocol();
  const EvidenceClaims claims = embedded_claims(protocol);
  const EvidenceRecords records = read_records(fs::path(LAZY_SOURCE_DIR) / "docs/results/evidence", protocol);
  EXPECT_FALSE(records.json.empty());
  const auto verdicts = judge_claims(claims, protocol, records);
  ASSERT_EQ(verdicts.size(), claims.claims.size());
  for (const ClaimVerdict& v : verdicts) {
    if (v.effect.by_unit.size() > 1) continue;         // with several seeds any verdict is possible
    if (v.verdict == Verdict::not_testable) continue;  // the condition of its block is not met
    EXPECT_EQ(v.verdict, v.effect.by_unit.empty() ? Verdict::missing : Verdict::open)
        << name(v.verdict) << ": " << v.note;
  }
  const std::string page = evidence_page(claims, protocol, records, evidence_figures(claims, protocol, records));
  const Json json = evidence_json(claims, protocol, records);
  EXPECT_EQ(json.at("recorded"), records.json.size());
  EXPECT_EQ(json.at("runs"), protocol.runs().size());
  EXPECT_THAT(page, HasSubstr("B.softmax.seed1"));
}

TEST_F(EvidenceReport, List_IsReplacedByItsMean) {
  const Json layers = {{"measures", {{"heldout", {{"loss", 1.0}}}, {"v", {{1.0, 2.0}, {3.0, 6.0}}}}}};
  record("B.s.seed1", 0, layers);
  record("B.e.seed1", 2.5);
  EXPECT_THAT(verdict(std::string(kDifference) + "bound = 0\n").effect.by_unit, ElementsAre(-0.5));
  record("B.s.seed1", 0, {{"measures", {{"heldout", {{"loss", 1.0}}}, {"v", Json::array()}}}});
  EXPECT_THAT(error_of([&] { verdict(std::string(kDifference) + "bound = 0\n"); }),
              Names({"B.s.seed1.json", "measures.v"}));
}

TEST_F(EvidenceReport, Page_ShowsClaimAndPaper) {
  const std::string keys = std::string(kDifference) + "bound = 0\npaper = \"half\"\ndiffers = \"the size\"\n";
  const auto page = [&] {
    const EvidenceClaims claims = read_claims(claim(keys), "claims.toml", protocol_);
    const EvidenceRecords records = read_records(path_, protocol_);
    return evidence_page(claims, protocol_, records, evidence_figures(claims, protocol_, records));
  };
  EXPECT_THAT(page(), HasSubstr("**missing**"));
  const Json training = {{"training", {{"loss", {1.0}}, {"validation", {{"tokens", {1000.0}}, {"loss", {1.0}}}}}}};
  for (int seed = 1; seed <= 3; ++seed) {
    record(fmt::format("B.s.seed{}", seed), 2 + seed, training);
    record(fmt::format("B.e.seed{}", seed), 1.99 + 0.99 * seed - 0.01, training);
  }
  const std::string text = page();
  const size_t begin = text.find("\n### t\n");
  ASSERT_NE(begin, std::string::npos);
  const std::string section = text.substr(begin, text.find("\n## ", begin) - begin);
  EXPECT_THAT(section, Names({"r", "B", "-0.0400", "-0.0648", "-0.0152", "55M", 3, "**reproduced**", "half",
                              std::string("the size"), "![t](claim-x.svg)"}));
}

TEST_F(EvidenceReport, Figures_ShowRecordedValues) {
  const EvidenceClaims claims =
      read_claims(claim("form = \"bound\"\nover = [\"e\", \"eb\"]\nside = \"below\"\nbound = 0.005\n"
                        "slope_block = \"E\"\nslope_cells = [\"e\"]\nslope_measure = \"v\"\n"),
                  "claims.toml", protocol_);
  const auto figures = [&] { return evidence_figures(claims, protocol_, read_records(path_, protocol_)); };
  const auto count = [](const std::string& text, const std::string& part) {
    int64_t found = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
  };
  EXPECT_TRUE(figures().empty());
  const Json training = {{"training", {{"loss", {1.0}}, {"validation", {{"tokens", {1000.0}}, {"loss", {1.0}}}}}}};
  record("B.e.seed1", 0.001, training);
  record("B.e.seed2", 0.002, training);
  ASSERT_EQ(figures().size(), 1u);
  const EvidenceFigure cells = figures()[0];
  EXPECT_EQ(cells.file, "claim-x.svg");
  EXPECT_THAT(cells.svg, testing::StartsWith("<svg xmlns="));
  EXPECT_THAT(cells.svg, HasSubstr(">eb</text>")) << "a cell without records still has a row";
  EXPECT_THAT(cells.svg, Names({"0.005"}));
  EXPECT_EQ(count(cells.svg, "class=\"mark\""), 2);
  EXPECT_EQ(count(cells.svg, "class=\"stroke\""), 1) << "only cell e has an interval";
  record("E.e.seed1", 0, {{"snapshots", {{{"tokens", 1000}, {"v", 0.1}}, {{"tokens", 2000}, {"v", 0.2}}}}});
  ASSERT_EQ(figures().size(), 2u);
  EXPECT_EQ(figures()[1].file, "training-x.svg");
  const std::string training_svg = figures()[1].svg;
  const auto seeds = static_cast<int64_t>(protocol_.block("E").seeds.size());
  EXPECT_EQ(count(training_svg, "class=\"mark\""), 2 + seeds)
      << "two marks for the snapshots and one mark per seed in the legend";
  EXPECT_THAT(training_svg, HasSubstr(">e</text>"));
}

TEST_F(EvidenceReport, LayerCurves_NeedCompleteSeeds) {
  const std::string keys = std::string(kDifference) + "bound = 0\n";
  const EvidenceClaims claims = read_claims(claim(keys) +
                                                "[by-layer]\nblock = \"B\"\nover = [\"e\", \"eb\"]\nunder = [\"s\"]\n"
                                                "[by-layer-measures]\nv-of-states = \"measures.v\"\n",
                                            "claims.toml", protocol_);
  const auto layers = [](double first, double second) {
    return Json{{"training", {{"loss", {1.0}}, {"validation", {{"tokens", {1000.0}}, {"loss", {1.0}}}}}},
                {"measures", {{"heldout", {{"loss", 1.0}}}, {"v", {first, second}}}}};
  };
  record("B.s.seed1", 0, layers(1, 2));
  record("B.s.seed2", 0, layers(1, 2));
  record("B.e.seed1", 0, layers(3, 4));
  record("B.e.seed2", 0, layers(3, 4));
  record("B.eb.seed1", 0, layers(5, 8));
  const EvidenceRecords records = read_records(path_, protocol_);
  EXPECT_THAT(numbers_at(records.json.at("B.eb.seed1"), "measures.v", "r"), ElementsAre(5, 8));
  EXPECT_THAT(error_of([&] { numbers_at(records.json.at("B.eb.seed1"), "measures.heldout.loss", "r"); }),
              Names({"r", "measures.heldout.loss"}));
  const auto figures = evidence_figures(claims, protocol_, records);
  const auto found =
      std::find_if(figures.begin(), figures.end(), [](const auto& f) { return f.section == "by-layer"; });
  ASSERT_NE(found, figures.end());
  EXPECT_EQ(found->file, "layers-v-of-states.svg");
  size_t curves = 0;
  for (size_t at = 0; (at = found->svg.find("class=\"stroke\"", at)) != std::string::npos; ++at) ++curves;
  EXPECT_EQ(curves, 3u + 2u) << "three curves, because seed 2 has no record of cell eb, and two curves in the legend";
  for (const char* name : {">e ", ">s "}) EXPECT_THAT(found->svg, HasSubstr(name));
  EXPECT_THAT(evidence_page(claims, protocol_, records, figures), HasSubstr("](layers-v-of-states.svg)"));
}

std::pair<int, std::string> lazy_evidence_report(const std::string& arguments) {
  return run_command(std::string(LAZY_BINARY) + " " + arguments);
}

TEST(EvidenceReportCommand, Report_IsWrittenToFileAndStdout) {
  const fs::path page = fs::path(testing::TempDir()) / fmt::format("evidence_{}.md", ::getpid());
  const auto [code, output] = lazy_evidence_report("repro evidence --records nowhere --report " + page.string());
  ASSERT_EQ(code, 0) << output;
  const std::string text = read_file(page);
  EXPECT_THAT(text, Names({0, embedded_protocol().runs().size(), "55M"}));
  fs::remove(page);
  EXPECT_THAT(lazy_evidence_report("repro evidence --records nowhere --report -").second, HasSubstr(text));
  const auto [json_code, json] = lazy_evidence_report("repro evidence --records nowhere --report --json");
  ASSERT_EQ(json_code, 0) << json;
  EXPECT_EQ(Json::parse(json).at("claims").size(), embedded_claims(embedded_protocol()).claims.size());
}

TEST(EvidenceReportCommand, Mistakes_AreNamedInTheError) {
  const auto names = [](const std::string& arguments, std::initializer_list<Token> tokens) {
    const auto [code, printed] = lazy_evidence_report("repro " + arguments);
    EXPECT_EQ(code, 2) << arguments;
    EXPECT_THAT(printed, Names(tokens)) << arguments;
  };
  names("evidence --report", {"--report", "FILE.md", "--json"});
  names("evidence --report - --list", {"--report", "--list", "--block", "--only"});
  names("evidence --report - --block B", {"--report", "--list", "--block", "--only"});
  names("evidence page.md", {"evidence", "--report", "--claims"});
  names("fig6 page.md", {"page.md", "--report"});
  names("all --report page.md", {"page.md", "--report", "all"});
  names("fig6 --claims x.toml", {"--claims", "evidence", "--report", "fig6"});
}

}  // namespace
}  // namespace lazy::repro
