// Tests `lazy repro evidence`: a complete tiny run and its record, the choice of the next run, and errors for damaged
// records.
#include "repro/evidence/evidence.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>

#include "core/file.h"
#include "evidence_folder.h"
#include "measure/model_measures.h"
#include "repro/evidence/record.h"
#include "support/error_of.h"
#include "support/run_command.h"

namespace lazy::repro {
namespace {
namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

class Evidence : public testing::Test {
 protected:
  const EvidenceFolder files_;
  const Protocol protocol_ = read_protocol(kTinyProtocol, "tiny.toml");

  EvidenceOptions only(const std::string& run) const {
    EvidenceOptions options = files_.options();
    options.only = {run};
    return options;
  }
  // Writes a record with the fields that later code reads, without training a model.
  void write_record(const EvidenceRun& run, double seconds, double excess) const {
    fs::create_directories(files_.options().records);
    const Json record = {{"format", kEvidenceFormat},
                         {"protocol", {{"version", protocol_.version}}},
                         {"block", run.block},
                         {"cell", run.cell},
                         {"seed", run.seed},
                         {"overrides", run.overrides},
                         {"device", "cpu"},
                         {"date", "2026-01-31"},
                         {"tokens", run.tokens},
                         {"corpus", {{"fingerprint", corpus_fingerprint(files_.options().corpus)}}},
                         {"seconds", {{"training", seconds}, {"measuring", 0}}},
                         {"training", {{"loss", {1.0}}}},
                         {"measures",
                          {{"heldout", {{"loss", 1.0}, {"bos_per_sequence", true}}},
                           {"sinks", {{"32", {{"bos", {{"excess", excess}}}}}}}}}};
    std::ofstream(record_path(files_.options().records, run)) << record.dump();
  }
};

void check_sinks(const Json& sinks, bool elastic) {
  for (const char* length : {"16", "32"}) {
    for (const char* bos : {"bos", "no_bos"}) {
      const Json& s = sinks.at(length).at(bos);
      const double n = std::stod(length), ratio = s.at("sink_ratio").get<double>();
      double harmonic = 0;
      for (int i = 1; i <= n; ++i) harmonic += 1.0 / i;
      EXPECT_NEAR(s.at("uniform").get<double>(), elastic ? 0 : harmonic / n, 1e-6);
      EXPECT_NEAR(s.at("excess").get<double>(), ratio - s.at("uniform").get<double>(), 1e-6);
      EXPECT_NEAR(s.at("excess_at_offsets").get<double>(), ratio - s.at("uniform_at_offsets").get<double>(), 1e-6);
      EXPECT_NEAR(ratio + s.at("density").get<double>() + s.at("released_mass").get<double>(), 1, 1e-5);
      EXPECT_LE(s.at("alive_fraction").get<double>(), 1);
      EXPECT_EQ(s.at("by_head").at("sink_ratio").size(), 2u);
      EXPECT_EQ(s.at("by_head").at("sink_1").at(1).size(), 2u);
      EXPECT_TRUE(s.contains("sink_1"));
    }
  }
}

void check_texts(const Json& measures) {
  for (const char* bos : {"bos_every_window", "no_bos"}) {
    const Json &wikitext = measures.at("wikitext").at(bos), &lambada = measures.at("lambada").at(bos);
    EXPECT_EQ(wikitext.at("texts"), 2);
    EXPECT_EQ(wikitext.at("by_group").size(), 2u);
    EXPECT_NEAR(wikitext.at("loss_per_word").get<double>() * wikitext.at("words").get<double>(),
                wikitext.at("loss_per_token").get<double>() * wikitext.at("tokens").get<double>(), 0.05);
    EXPECT_EQ(lambada.at("texts"), 2);
    EXPECT_EQ(lambada.at("words"), 9 + 6);
    EXPECT_EQ(lambada.at("tokens"), 43 + 27 - 2) << "one token per byte; the first token of a passage is not scored";
    EXPECT_GT(lambada.at("last_word_loss").get<double>(), 0);
    EXPECT_LE(lambada.at("last_word_accuracy").get<double>(), 1);
  }
  EXPECT_NE(measures.at("wikitext").at("no_bos"), measures.at("wikitext").at("bos_every_window"));
}

void check_lengths(const Json& lengths) {
  for (const char* length : {"32", "64"}) {
    const Json& l = lengths.at(length);
    EXPECT_EQ(l.at("tokens"), 3 * 64);
    const auto positions = l.at("positions").get<std::vector<int64_t>>();
    EXPECT_EQ(positions.front(), 1);
    EXPECT_EQ(positions.back(), std::stoll(length) + 1);
    double total = 0;  // sum of the means by position, weighted by their number of tokens
    for (size_t n = 0; n + 1 < positions.size(); ++n)
      total += l.at("by_position").at(n).get<double>() * static_cast<double>(positions[n + 1] - positions[n]);
    EXPECT_NEAR(total / std::stod(length), l.at("loss").get<double>(), 1e-4);
    EXPECT_EQ(l.at("by_group").size(), 3u);
  }
}

void check_activations(const Json& a, bool collapse = true) {
  EXPECT_EQ(a.at("collapse").is_null(), !collapse);
  if (collapse) {
    EXPECT_EQ(a.at("collapse").at("cosine").size(), 4u)
        << "one value before each of the two layers, one after the last layer and one after the final norm";
    EXPECT_EQ(a.at("collapse").at("effective_rank").size(), 4u);
    EXPECT_EQ(a.at("collapse").at("samples"), 2);
  }
  for (const char* part : {"first_position", "other_positions"}) {
    for (const char* what : {"kurtosis", "rms", "largest"})
      EXPECT_EQ(a.at("residual").at(part).at(what).size(), 3u) << part << " " << what;
  }
  EXPECT_EQ(a.at("keys").at("mean_weight").size(), 16u);
  EXPECT_EQ(a.at("keys").at("next_keys").at(1).size(), 2u);
  EXPECT_EQ(a.at("keys").at("entropy").at(0).size(), 2u);
  double first = 0;
  for (const Json& layer : a.at("keys").at("first_key")) {
    for (const Json& head : layer) first += head.get<double>() / 4;
  }
  EXPECT_NEAR(first, a.at("keys").at("mean_weight").at(0).get<double>(), 1e-5);
}

TEST_F(Evidence, Run_LeavesOneCompleteRecord) {
  const EvidenceOutcome outcome = run_evidence(protocol_, only("A.softmax.seed1"));
  EXPECT_EQ(outcome.ran, 1);
  EXPECT_EQ(outcome.recorded, 1);
  const fs::path path = files_.options().records / "A.softmax.seed1.json";
  const Json r = Json::parse(read_file(path));
  EXPECT_LT(fs::file_size(path), 40u << 10);
  EXPECT_EQ(r.at("format"), kEvidenceFormat);
  EXPECT_EQ(r.at("protocol").at("version"), 3);
  EXPECT_EQ(r.at("protocol").at("fingerprint"), protocol_.fingerprint);
  EXPECT_EQ(r.at("exploratory"), false);
  EXPECT_EQ(r.at("configuration").at("training.seed"), 42);
  EXPECT_EQ(r.at("model").at("rope_theta"), 10000.0);
  EXPECT_EQ(r.at("tokens"), 1280);
  EXPECT_EQ(r.at("steps"), 10);
  EXPECT_EQ(r.at("device"), "cpu");
  EXPECT_EQ(r.at("dtype"), r.at("configuration").at("training.dtype"));
  EXPECT_GT(r.at("parameters").get<int64_t>(), 1000);
  EXPECT_GT(r.at("tokens_per_second").get<double>(), 0);
  EXPECT_GT(r.at("corpus").at("passes").get<double>(), 0);
  EXPECT_EQ(r.at("tokenizer").at("kind"), "bytes");
  EXPECT_TRUE(r.contains("date") && r.contains("version"));
  EXPECT_FALSE(r.contains("snapshots"));
  const Json& t = r.at("training");
  EXPECT_EQ(t.at("tokens").get<std::vector<int64_t>>(), (std::vector<int64_t>{256, 640, 896, 1280}));
  for (const char* curve : {"loss", "gradient_norm", "largest_gradient_norm"}) EXPECT_EQ(t.at(curve).size(), 4u);
  EXPECT_EQ(t.at("validation").at("tokens").get<std::vector<int64_t>>(), (std::vector<int64_t>{512, 1024, 1280}));
  EXPECT_EQ(t.at("attention").at("sink_ratio").size(), 3u);
  const Json& m = r.at("measures");
  EXPECT_EQ(m.at("dtype"), "fp32");
  EXPECT_EQ(m.at("heldout").at("sequences"), 1000 / 31);
  EXPECT_EQ(m.at("heldout").at("whole_split"), false);
  EXPECT_EQ(m.at("heldout").at("bos_per_sequence"), true);
  EXPECT_EQ(m.at("heldout").at("by_group").size(), 32u);
  check_texts(m);
  check_sinks(m.at("sinks"), false);
  check_lengths(m.at("lengths").at("bos_every_window"));
  EXPECT_EQ(m.at("lengths").at("other_rope_base").at("rope_base"), 150000.0);
  check_lengths(m.at("lengths").at("other_rope_base").at("bos_every_window"));
  check_activations(m.at("activations"));
  EXPECT_EQ(m.at("learned"), Json::object());
  check_sinks(m.at("post_hoc").at("sinks"), true);
  check_activations(m.at("post_hoc").at("activations"), false);
  EXPECT_NE(m.at("post_hoc").at("heldout").at("loss"), m.at("heldout").at("loss"));
  EXPECT_FALSE(fs::exists(files_.options().output / "evidence" / "A.softmax.seed1"))
      << "the folder of the run must be deleted after its record is written";
  for (const auto& entry : fs::directory_iterator(files_.options().output / "evidence"))
    EXPECT_EQ(entry.path().filename(), "configs");
  EXPECT_EQ(run_evidence(protocol_, only("A.softmax.seed1")).ran, 0) << "the run already has a record";
}

TEST_F(Evidence, LazyRun_HasSnapshots) {
  EXPECT_EQ(run_evidence(protocol_, only("S.lazy.seed1")).ran, 1);
  const Json r = Json::parse(read_file(files_.options().records / "S.lazy.seed1.json"));
  const Json& m = r.at("measures");
  check_sinks(m.at("sinks"), true);
  EXPECT_FALSE(m.contains("post_hoc"));
  EXPECT_FALSE(m.at("lengths").contains("other_rope_base")) << "the model was trained with this RoPE base";
  const Json& learned = m.at("learned");
  EXPECT_EQ(learned.at("tau").at(1).size(), 2u);
  const Json& bias = learned.at("distance_bias");
  EXPECT_EQ(bias.at("window"), 20);
  EXPECT_FALSE(bias.at("gauge_rule").get<std::string>().empty());
  EXPECT_EQ(bias.at("bias").at(0).at(0).size(), bias.at("distances").size());
  EXPECT_EQ(bias.at("distances").front().get<std::vector<int64_t>>(), (std::vector<int64_t>{0, 0}));
  EXPECT_EQ(bias.at("distances").back().at(1), 19);
  const Json& snapshots = r.at("snapshots");
  ASSERT_EQ(snapshots.size(), 2u);
  EXPECT_EQ(snapshots.at(0).at("tokens"), 640);
  EXPECT_EQ(snapshots.at(1).at("tokens"), 1280);
  EXPECT_EQ(snapshots.at(1).at("sinks").at("32").at("bos").at("sink_ratio"),
            m.at("sinks").at("32").at("bos").at("sink_ratio"))
      << "the last snapshot has the measurements of the final model";
  EXPECT_EQ(snapshots.at(0).at("sinks").at("16").at("no_bos").at("by_layer").at("sink_ratio").size(), 2u);
  EXPECT_GT(snapshots.at(0).at("heldout").at("loss").get<double>(), 0);
}

TEST_F(Evidence, RecordedAndTooLongRuns_AreSkipped) {
  const auto runs = protocol_.runs();
  for (const size_t n : {size_t{0}, size_t{1}, size_t{3}, size_t{4}}) write_record(runs[n], 1000, 0);
  EvidenceOptions options = files_.options();
  auto states = evidence_states(protocol_, options);
  ASSERT_EQ(states.size(), 5u);
  for (size_t n = 0; n < 5; ++n) EXPECT_EQ(states[n].record.is_null(), n == 2) << states[n].run.id();
  EXPECT_TRUE(states[2].expected_from_records);
  EXPECT_NEAR(states[2].expected_seconds, 1000, 0.1 * 1000)
      << "the expected time is the recorded time of the other seed";
  options.seconds = 900;
  EvidenceOutcome outcome = run_evidence(protocol_, options);
  EXPECT_EQ(outcome.ran, 0);
  EXPECT_EQ(outcome.recorded, 4);
  EXPECT_THAT(outcome.too_long, ElementsAre("A.softmax.seed2"));
  EXPECT_FALSE(fs::exists(record_path(options.records, runs[2])));
  options.seconds = 1500;
  outcome = run_evidence(protocol_, options);
  EXPECT_EQ(outcome.ran, 1);
  EXPECT_EQ(outcome.recorded, 5);
}

TEST_F(Evidence, Block_WaitsForItsCondition) {
  Protocol p = protocol_;
  p.blocks[0].condition = "softmax";
  p.blocks[0].condition_seeds = 2;
  p.blocks[0].condition_excess = 0.01;
  const auto waits = [&](size_t n) { return evidence_states(p, files_.options()).at(n).waits; };
  EXPECT_EQ(waits(0), "") << "the cell whose result is the condition does not wait";
  EXPECT_THAT(waits(1), Names({2, "softmax", 0}));
  write_record(p.runs()[0], 1, 0.004);
  write_record(p.runs()[2], 1, 0.008);
  EXPECT_THAT(waits(3), Names({"softmax", "0.60", "1.00"}));
  write_record(p.runs()[2], 1, 0.03);
  EXPECT_EQ(waits(3), "");
  EXPECT_EQ(waits(4), "") << "another block does not wait";
}

TEST_F(Evidence, DamagedRecord_IsNamedInTheError) {
  const EvidenceRun run = protocol_.runs().front();
  const fs::path path = record_path(files_.options().records, run);
  const auto error = [&](const std::function<void(Json&)>& change) {
    write_record(run, 1, 0);
    Json record = Json::parse(read_file(path));
    change(record);
    std::ofstream(path) << record.dump();
    const std::string message = error_of([&] { run_evidence(protocol_, files_.options()); });
    EXPECT_THAT(message, HasSubstr(path.string()));
    return message;
  };
  EXPECT_THAT(
      error([](Json& r) { r["seed"] = 5; }),
      IsMessage(fmt::format("repro: {}: seed: expected 1, found 5; delete the file to repeat the run", path.string())));
  EXPECT_THAT(error([](Json& r) { r["protocol"]["version"] = 2; }), Names({"protocol.version", 3, 2}));
  EXPECT_THAT(error([](Json& r) { r["corpus"]["fingerprint"] = "0"; }), Names({"corpus.fingerprint", "0"}));
  EXPECT_THAT(error([](Json& r) { r["overrides"].push_back("a.b=1"); }), Names({"overrides"}));
  EXPECT_THAT(error([](Json& r) { r["measures"]["heldout"]["loss"] = "low"; }),
              Names({"measures.heldout.loss", "low"}));
  EXPECT_THAT(error([](Json& r) { r.erase("training"); }), Names({"training"}));
  std::ofstream(path) << "{\"format\": ";
  EXPECT_THAT(error_of([&] { evidence_states(protocol_, files_.options()); }), Names({path.string(), "JSON"}));
}

TEST_F(Evidence, MissingInputs_AreNamedInTheError) {
  const auto error = [&](const std::function<void(EvidenceOptions&)>& change) {
    EvidenceOptions options = files_.options();
    change(options);
    return error_of([&] { run_evidence(protocol_, options); });
  };
  EXPECT_THAT(error([](EvidenceOptions& o) { o.corpus.clear(); }),
              IsMessage("repro: training needs a corpus from `lazy data prepare`: pass --corpus DIR"));
  EXPECT_THAT(error([](EvidenceOptions& o) { o.corpus = "nowhere"; }), Names({"--corpus", "nowhere"}));
  EXPECT_THAT(error([](EvidenceOptions& o) { o.data.clear(); }), Names({"--data", "DIR"}));
  EXPECT_THAT(error([&](EvidenceOptions& o) { o.data = files_.path / "corpus"; }), Names({"wikitext"}));
  const fs::path below_a_file = files_.path / "text.jsonl" / "records";
  EXPECT_THAT(error([&](EvidenceOptions& o) { o.records = below_a_file; }),
              Names({"--records", below_a_file.string()}));
  EXPECT_THAT(error([](EvidenceOptions& o) { o.blocks = {"AA"}; }), Names({"--block", "A", "S", "AA"}));
}

TEST(EvidenceMeasures, LengthWindows_MatchHandMadeList) {
  const std::vector<std::vector<int64_t>> stretches{{9, 1, 2, 3, 4}};
  using Windows = std::vector<eval::Window>;
  EXPECT_EQ(length_windows(stretches, 2, {}), (Windows{{{9, 1}, {1, 2}}, {{2, 3}, {3, 4}}}));
  EXPECT_EQ(length_windows(stretches, 2, 0), (Windows{{{0, 1}, {1, 2}}, {{0, 3}, {3, 4}}}));
  EXPECT_EQ(length_windows(stretches, 4, 0), (Windows{{{0, 1, 2, 3}, {1, 2, 3, 4}}}));
}

TEST(EvidenceMeasures, Numbers_AreRoundedAndThinned) {
  EXPECT_EQ(rounded(1.0 / 3), 0.333333);
  EXPECT_EQ(rounded(NAN), Json());
  EXPECT_EQ(thinned({1, 3, 5, 7, 9}, 2), (std::vector<double>{2, 7}));
  EXPECT_EQ(thinned({1, 3}, 4), (std::vector<double>{1, 3}));
}

std::pair<int, std::string> lazy_evidence(const std::string& arguments) {
  return run_command(std::string(LAZY_BINARY) + " " + arguments);
}

TEST(EvidenceCommand, List_NamesRunsAndMistakes) {
  const auto [code, output] = lazy_evidence("repro evidence --list --json --records nowhere");
  ASSERT_EQ(code, 0) << output;
  const Json list = Json::parse(output);
  EXPECT_EQ(list.size(), embedded_protocol().runs().size());
  EXPECT_EQ(list.at(0).at("run"), "B.softmax.seed1");
  EXPECT_GT(list.at(0).at("expected_seconds").get<double>(), 0);
  EXPECT_EQ(list.back().at("exploratory"), true);
  EXPECT_THAT(lazy_evidence("repro evidence --list --block E --records nowhere").second, Names({"E.softmax.seed1"}));
  const Json of_block = Json::parse(lazy_evidence("repro evidence --list --json --block E --records nowhere").second);
  EXPECT_FALSE(of_block.empty());
  for (const Json& run : of_block) {
    EXPECT_EQ(run.at("block"), "E");
    EXPECT_EQ(run.at("recorded"), false);
  }
  const auto names = [](const std::string& arguments, std::initializer_list<Token> tokens) {
    const auto [status, printed] = lazy_evidence("repro " + arguments);
    EXPECT_EQ(status, 2) << arguments;
    EXPECT_THAT(printed, Names(tokens)) << arguments;
  };
  names("evidence --block F --list", {"--block", "B", "E", "D", "C", "F"});
  names("evidence", {"--corpus", "DIR"});
  names("fig6 --seconds 10", {"--seconds", "evidence", "fig6"});
}

}  // namespace
}  // namespace lazy::repro
