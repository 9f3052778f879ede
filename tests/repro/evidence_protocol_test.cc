// Tests the protocol of `lazy repro evidence` as data: its contents, the order of its runs, and errors for mistakes.
#include "repro/evidence/protocol.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "evidence_folder.h"
#include "model/config.h"
#include "model/language_model.h"
#include "repro/configs.h"
#include "support/error_of.h"

namespace lazy::repro {
namespace {
using testing::ElementsAre;

std::vector<std::string> ids(const std::vector<EvidenceRun>& runs) {
  std::vector<std::string> out;
  for (const EvidenceRun& run : runs) out.push_back(run.id());
  return out;
}

std::string changed(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(EvidenceProtocol, Protocol_IsReadAndRunsInOrder) {
  const Protocol p = read_protocol(kTinyProtocol, "tiny.toml");
  EXPECT_EQ(p.version, 3);
  EXPECT_EQ(p.curve_points, 4);
  EXPECT_EQ(p.sizes.lengths, (std::vector<int64_t>{32, 64}));
  EXPECT_EQ(p.block("S").snapshot_every, 640);
  const auto runs = p.runs();
  EXPECT_THAT(ids(runs),
              ElementsAre("A.softmax.seed1", "A.lazy.seed1", "A.softmax.seed2", "A.lazy.seed2", "S.lazy.seed1"));
  EXPECT_EQ(runs[3].overrides.back(), "training.seed=43");
  EXPECT_EQ(runs[3].overrides[runs[3].overrides.size() - 2], "model.rope_theta=150000")
      << "the overrides of the cell come last, before the seed";
}

TEST(EvidenceProtocol, ExploratoryCells_RunLast) {
  const Protocol p = read_protocol(changed(kTinyProtocol, "cells = [\"softmax\", \"lazy\"]",
                                           "cells = [\"softmax\", \"lazy\"]\nexploratory = [\"softmax\"]"),
                                   "tiny.toml");
  EXPECT_THAT(ids(p.runs()),
              ElementsAre("A.lazy.seed1", "A.lazy.seed2", "S.lazy.seed1", "A.softmax.seed1", "A.softmax.seed2"));
  EXPECT_TRUE(p.runs().back().exploratory);
}

TEST(EvidenceProtocol, Mistakes_AreNamedInTheError) {
  const auto names = [](const char* from, const char* to, std::initializer_list<Token> tokens) {
    EXPECT_THAT(error_of([&] { read_protocol(changed(kTinyProtocol, from, to), "tiny.toml"); }), Names(tokens)) << to;
  };
  names("curve_points = 4", "curve_point = 4", {"tiny.toml", "curve_point", "protocol", "curve_points"});
  names("sink_tokens", "sink_token", {"sink_token", "measures", "sink_tokens"});
  names("[\"softmax\", \"lazy\"]", "[\"sofmax\", \"lazy\"]", {"A.cells", "sofmax", "softmax"});
  names("[\"softmax\", \"lazy\"]", "[\"lazy\", \"lazy\"]", {"A.cells", "lazy"});
  names("cells = [\"lazy\"]\n", "", {"[S]", "cells"});
  names("version = 3", "", {"protocol", "version"});
  names("blocks = [\"A\", \"S\"]", "blocks = [\"A\"]", {"[S]"});
  names("softmax = []", "softmax = []\nunused = []", {"unused", "cells"});
  names("softmax = []", "softmax = [\"normalizer\"]", {"softmax", "section.key=value", "normalizer"});
  names("seeds = [1, 2]", "seeds = [2, 1]", {"seeds", 1});
  names("lengths = [32, 64]\n", "lengths = [24, 64]\n", {"lengths", 64, 24});
  names("snapshot_every = 640", "condition = \"softmax\"", {"S.condition", "lazy", "softmax"});
}

TEST(EvidenceProtocol, Runs_AreSelectedByName) {
  const Protocol p = read_protocol(kTinyProtocol, "tiny.toml");
  EXPECT_THAT(ids(selected_runs(p, {"S"}, {})), ElementsAre("S.lazy.seed1"));
  EXPECT_THAT(ids(selected_runs(p, {}, {"lazy.seed1"})), ElementsAre("A.lazy.seed1", "S.lazy.seed1"));
  EXPECT_THAT(ids(selected_runs(p, {}, {"A.lazy.seed1"})), ElementsAre("A.lazy.seed1"));
  EXPECT_THAT(ids(selected_runs(p, {"A"}, {"lazy.seed1", "lazy.seed2"})), ElementsAre("A.lazy.seed1", "A.lazy.seed2"));
  EXPECT_THAT(error_of([&] { selected_runs(p, {"X"}, {}); }), Names({"--block", "A", "S", "X"}));
  EXPECT_THAT(error_of([&] { selected_runs(p, {}, {"A.lazy.seed3"}); }),
              Names({"--only", "A.lazy.seed3", "A.lazy.seed1"}));
  EXPECT_THAT(error_of([&] { selected_runs(p, {"S"}, {"softmax.seed1"}); }), Names({"--only", "S", "softmax.seed1"}));
}

// Checks the configuration of every run of the embedded protocol.
TEST(EvidenceProtocol, EmbeddedProtocol_HasExpectedConfigurations) {
  const Protocol p = embedded_protocol();
  const TemporaryFolder configs;
  write_configs(configs.path);
  std::map<std::string, int> runs_of;
  std::set<std::string> cells_of_b;
  for (const EvidenceRun& run : p.runs()) {
    SCOPED_TRACE(run.id());
    ++runs_of[run.block];
    const train::TrainConfig c = run_config(p, run, configs.path, "corpus", "run", "cpu");
    const AttentionConfig& a = c.model.attention;
    EXPECT_EQ(c.steps, (run.tokens + c.tokens_per_step() - 1) / c.tokens_per_step());
    EXPECT_EQ(c.tokens_per_step(), run.block == "C" ? 32768 : 131072);
    EXPECT_EQ(c.optimizer.lr, run.block == "C" ? 1e-3 : 3e-3);
    EXPECT_EQ(c.optimizer.weight_decay, 0.1);
    EXPECT_EQ(c.optimizer.beta2, 0.95);
    EXPECT_EQ(c.schedule.warmup_steps, 200);
    EXPECT_EQ(c.schedule.min_factor, 0.1);
    EXPECT_EQ(c.max_norm, 1.0);
    EXPECT_EQ(c.seed, static_cast<uint64_t>(41 + run.seed));
    EXPECT_EQ(c.sequences.bos_per_sequence, run.block != "C");
    EXPECT_EQ(c.sequences.bos_per_document, run.block == "C");
    EXPECT_EQ(c.model.num_layers, 12);
    EXPECT_EQ(c.model.hidden_size, 512);
    EXPECT_EQ(a.num_heads, 8);
    EXPECT_EQ(c.model.max_length, 512);
    EXPECT_TRUE(c.model.tie_embeddings);
    EXPECT_TRUE(a.distance_bias_window == 0 || a.distance_bias_window == 128);
    EXPECT_TRUE(a.distance_bias_init_apart);
    EXPECT_EQ(c.export_every, run.block == "E");
    EXPECT_EQ(run.exploratory, run.cell == "sparsemax" || run.cell == "entmax15");
    if (run.block != "B") continue;
    cells_of_b.insert(fmt::format("{} {} {}", a.normalizer == Normalizer::softmax, a.distance_bias_window,
                                  c.model.positions.rope_base));
    EXPECT_EQ(run.tokens, 200'000'000);
  }
  EXPECT_EQ(cells_of_b.size(), 8u) << "a complete 2 x 2 x 2 design";
  EXPECT_EQ(runs_of.at("B"), 24);
  EXPECT_EQ(runs_of.at("E"), 4);
  EXPECT_EQ(runs_of.at("D"), 15);
  EXPECT_EQ(runs_of.at("C"), 9);
  const auto order = ids(p.runs());
  EXPECT_EQ(order.front(), "B.softmax.seed1");
  EXPECT_EQ(order.at(8), "B.softmax.seed2") << "runs are ordered by seed";
  EXPECT_EQ(order.at(24), "E.softmax.seed1");
  EXPECT_EQ(order.at(28).substr(0, 2), "D.");
  EXPECT_EQ(order.at(37).substr(0, 2), "C.");
  EXPECT_EQ(order.back(), "D.entmax15.seed3");
}

// Cells with the same seed are compared as pairs. Therefore, all initial weights that they have in common must be
// equal.
TEST(EvidenceProtocol, CellsOfOneSeed_ShareInitialWeights) {
  const Protocol p = read_protocol(kTinyProtocol, "tiny.toml");
  const TemporaryFolder configs;
  write_configs(configs.path);
  const auto model_of = [&](size_t n, std::vector<std::string> more = {}) {
    EvidenceRun run = p.runs().at(n);
    run.overrides.insert(run.overrides.end(), more.begin(), more.end());
    train::TrainConfig c = run_config(p, run, configs.path, "corpus", "run", "cpu");
    c.model.vocab_size = 100;
    return LanguageModel(c.model, c.seed);
  };
  const auto shared_equal = [](const LanguageModel& a, const LanguageModel& b) {
    int64_t compared = 0;
    bool equal = true;
    size_t next = 0;
    for (const auto& [name, tensor] : b.stored()) {
      if (name.ends_with("learnable_bias_diagonals") || name.ends_with("softmax_offset")) continue;
      equal = equal && at::equal(a.stored().at(next++).second, tensor);
      ++compared;
    }
    EXPECT_EQ(compared, static_cast<int64_t>(a.stored().size()));
    return equal;
  };
  EXPECT_TRUE(shared_equal(model_of(0), model_of(1)));
  EXPECT_FALSE(shared_equal(model_of(0), model_of(3))) << "a different seed";
  EXPECT_FALSE(shared_equal(model_of(0), model_of(1, {"model.distance_bias_init_apart=false"})))
      << "with a single random stream the biases shift all later weights";
  const at::Tensor apart = model_of(1).distance_bias(1),
                   together = model_of(1, {"model.distance_bias_init_apart=false"}).distance_bias(1);
  EXPECT_NEAR(apart.std().item<double>(), together.std().item<double>(), 5e-4);
  EXPECT_FALSE(at::equal(model_of(1).distance_bias(0), apart)) << "every layer has different biases";
}

}  // namespace
}  // namespace lazy::repro
