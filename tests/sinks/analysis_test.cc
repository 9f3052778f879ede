#include "sinks/analysis.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "full_matrices.h"
#include "sinks/attention_maps.h"
#include "support/error_of.h"

namespace lazy::sinks {

const std::string kText = [] {
  std::string text = "NAME\n  tool - does things\n\n";
  for (int i = 0; i < 40; ++i) {
    text +=
        "The quick brown fox jumps over the lazy dog, and the dog, who has seen it all before, sleeps on in the sun "
        "without so much as a glance at the fox. Nobody minds.\n\n";
  }
  return text;
}();

TEST(Samples, Samples_AreSpreadEvenlyWithoutOverlap) {
  std::vector<int32_t> ids(103);
  for (int32_t i = 0; i < 103; ++i) ids[static_cast<size_t>(i)] = i;
  const auto all = spread_samples(ids, 10, 100, std::nullopt);
  ASSERT_EQ(all.size(), 10u);
  EXPECT_EQ(all[9].front(), 90);
  const auto some = spread_samples(ids, 10, 4, std::nullopt);
  ASSERT_EQ(some.size(), 4u);
  EXPECT_EQ(some[0].front(), 0);
  EXPECT_EQ(some[1].front(), 20);
  EXPECT_EQ(some[3].front(), 70);
  const auto with_bos = spread_samples(ids, 10, 2, 1000);
  EXPECT_EQ(with_bos[0].front(), 1000);
  EXPECT_EQ(with_bos[0].size(), 10u);
  // the text is divided into 11 blocks of 9 ids, and the second sample is the sixth block, which starts at id 45
  EXPECT_EQ(with_bos[1][1], 45);
  EXPECT_TRUE(spread_samples(ids, 104, 5, std::nullopt).empty());
}

TEST(Prose, FirstProse_SkipsListsAndCode) {
  EXPECT_THAT(first_prose(kText), testing::StartsWith("The quick brown fox"));
  EXPECT_EQ(first_prose("short"), "short");
}

TEST(Analysis, Json_HasMeasuresAndMaps) {
  LanguageModel model = small_model("elastic");
  const auto tokenizer = load_tokenizer("bytes");
  AnalysisOptions options;
  options.samples = 5;
  options.progress = false;
  const Analysis result = analyze(model, *tokenizer, text_source(*tokenizer, kText, "text.txt"), options);
  EXPECT_EQ(result.length, 48);
  EXPECT_EQ(result.samples, 5);
  EXPECT_EQ(result.sink_samples, std::min<int64_t>(100, int64_t(kText.size()) / 64));
  const auto json = to_json(result, model.config(), "model", "text.txt", options, "lazy sinks model --text text.txt");
  EXPECT_EQ(json["version"], 2);
  EXPECT_EQ(json["model"]["normalizer"], "elastic");
  EXPECT_EQ(json["settings"]["length"], 48);
  EXPECT_EQ(json["per_head"]["density"].get<HeadMatrix>(), result.measures.density);
  EXPECT_EQ(json["overall"]["sink_1_0.3"], mean(result.sink_1));
  const auto& maps = json["attention_maps"];
  ASSERT_EQ(maps.size(), 3u);  // there is one map per layer, each of one head
  EXPECT_EQ(maps[0]["tokens"].size(), 24u);
  EXPECT_EQ(maps[0]["tokens"][0], "T");
  EXPECT_EQ(maps[2]["layer"], 2);
  // For each layer, the map shows the head with the highest sink ratio.
  const auto& row = result.measures.sink_ratio[2];
  EXPECT_EQ(maps[2]["head"], std::max_element(row.begin(), row.end()) - row.begin());
  EXPECT_THAT(to_table(result), Names({result.samples, result.length, result.sink_samples}));
  options.sink_samples = 0;
  const Analysis without = analyze(model, *tokenizer, text_source(*tokenizer, kText, "text.txt"), options);
  EXPECT_EQ(without.measures.density, result.measures.density);
  const auto read = to_json(without, model.config(), "model", "t", options, "c");
  EXPECT_FALSE(read["overall"].contains("sink_1_0.3"));
  EXPECT_EQ(read["per_head"]["density"], json["per_head"]["density"]);
  EXPECT_EQ(json["per_layer"]["density"].size(), 3u);
}

TEST(Analysis, Maps_AcceptHeadsAndRejectInvalidInput) {
  LanguageModel model = small_model("softmax");
  const auto tokenizer = load_tokenizer("bytes");
  AnalysisOptions options;
  options.samples = 2;
  options.progress = false;
  options.maps = "2:1,0:3";
  options.map_text = "Na\u00efve";
  const Analysis result = analyze(model, *tokenizer, text_source(*tokenizer, kText, "text.txt"), options);
  ASSERT_EQ(result.maps.size(), 2u);
  EXPECT_EQ(result.maps[0].layer, 2);
  EXPECT_EQ(result.maps[1].head, 3);
  EXPECT_EQ(result.maps[0].tokens,
            // the two bytes of ï are two tokens; the first has an empty label and the second has the whole letter
            (std::vector<std::string>{"N", "a", "", "\u00ef", "v", "e"}));
  for (const char* bad : {"3", "-1:0", "3:0", "0:4", "1:2:3", "a:b", "1:2,"}) {
    options.maps = bad;
    EXPECT_THAT(error_of([&] { analyze(model, *tokenizer, text_source(*tokenizer, kText, "text.txt"), options); }),
                Names({"--maps", std::string(bad), "auto", "all", "none", "LAYER:HEAD", 2, 3}))
        << bad;
  }
  options.maps = "all";
  EXPECT_EQ(analyze(model, *tokenizer, text_source(*tokenizer, kText, "text.txt"), options).maps.size(), 12u);
  options.maps = "none";
  EXPECT_TRUE(analyze(model, *tokenizer, text_source(*tokenizer, kText, "text.txt"), options).maps.empty());
  EXPECT_THAT(error_of([&] { analyze(model, *tokenizer, text_source(*tokenizer, "too short", "s.txt"), options); }),
              Names({"s.txt", 64}));
  options.length = 100000;
  EXPECT_THAT(error_of([&] { analyze(model, *tokenizer, text_source(*tokenizer, kText, "text.txt"), options); }),
              Names({"text.txt", 100000}));
}

// --maps FILE.json selects the heads of the maps in the file. Version 1 of the file counts layers and heads from 1.
TEST(Analysis, MapsOfFile_SelectTheSameHeads) {
  LanguageModel model = small_model("softmax");
  const auto tokenizer = load_tokenizer("bytes");
  const auto source = text_source(*tokenizer, kText, "text.txt");
  const std::string file = fmt::format("{}/maps_{}.json", testing::TempDir(), ::getpid());
  AnalysisOptions options{.samples = 2, .maps = "2:1,0:3", .progress = false};
  using Heads = std::vector<std::pair<int64_t, int64_t>>;
  const auto selected = [&](const std::string& content) {
    std::ofstream(file) << content;
    options.maps = file;
    Heads heads;
    for (const HeadMap& map : analyze(model, *tokenizer, source, options).maps) heads.emplace_back(map.layer, map.head);
    return heads;
  };
  const Analysis first = analyze(model, *tokenizer, source, options);
  EXPECT_EQ(selected(to_json(first, model.config(), "m", "t", options, "c").dump()), (Heads{{2, 1}, {0, 3}}));
  EXPECT_EQ(selected(R"({"version": 1, "attention_maps": [{"layer": 3, "head": 1}]})"), (Heads{{2, 0}}));
  EXPECT_EQ(selected(R"({"version": 2})"), Heads());
  const auto error = [&](const std::string& content) { return error_of([&] { selected(content); }); };
  EXPECT_THAT(error(R"({"version": 2, "attention_maps": [{"layer": 3, "head": 1}]})"), Names({"--maps", file, 2, 3}));
  EXPECT_THAT(error(R"({"version": 3})"), Names({file, "version", 3}));
  EXPECT_THAT(error(R"({"version": 2, "attention_maps": [{"layer": 1}]})"), Names({file, "attention_maps[0].head"}));
  EXPECT_THAT(error(R"({"version": 2, "attention_maps": [{"layer": "1", "head": 0}]})"),
              Names({file, "attention_maps[0].layer"}));
  EXPECT_THAT(error("{"), Names({file, "JSON"}));
  std::filesystem::remove(file);
}

TEST(Analysis, DefaultLength_IsBounded) {
  ModelConfig config = small_model("softmax").config();
  config.num_layers = 1;
  config.max_length = 131072;
  LanguageModel model(config, 5);
  const auto tokenizer = load_tokenizer("bytes");
  const auto measured = [&](size_t bytes) {
    const AnalysisOptions options{.samples = 1, .sink_samples = 1, .maps = "none", .progress = false};
    return analyze(model, *tokenizer, text_source(*tokenizer, kText.substr(0, bytes), "text.txt"), options).length;
  };
  EXPECT_EQ(measured(4000), kDefaultLength);
  EXPECT_EQ(measured(1000), 1000);
}

// With an intervention, all numbers and maps must describe the changed model. After the analysis, the model must be
// unchanged.
TEST(Analysis, Interventions_ApplyToAllMeasures) {
  LanguageModel model = small_model("softmax");
  const auto tokenizer = load_tokenizer("bytes");
  const auto source = text_source(*tokenizer, kText, "text.txt");
  AnalysisOptions options;
  options.samples = 2;
  options.progress = false;
  options.maps = "1:0";
  options.measures = kFurtherMeasures;
  const auto json = [&](const AnalysisOptions& o) {
    return to_json(analyze(model, *tokenizer, source, o), model.config(), "m", "t", o, "c");
  };
  const auto before = json(options);
  EXPECT_NEAR(before["further"]["weights"]["sink_1_by_head"][1][2].get<double>(),
              before["per_head"]["sink_1_0.3"][1][2].get<double>(), 1e-9);
  AnalysisOptions changed = options;
  changed.interventions.set_zero("layers.1.attention.weights[:,:,0]");
  const auto after = json(changed);
  EXPECT_EQ(after["per_layer"]["sink_ratio"][1].get<double>(), 0);
  EXPECT_EQ(after["per_layer"]["sink_ratio"][0], before["per_layer"]["sink_ratio"][0]);
  EXPECT_GT(after["per_layer"]["released_mass"][1].get<double>(), 0.001);
  EXPECT_EQ(after["attention_maps"][0]["weights"][5][0].get<double>(), 0);
  EXPECT_EQ(after["further"]["weights"]["sink_k_by_layer"][1][0].get<double>(), 0);
  changed.interventions = Interventions().set_zero("layers.*.self_attn.q_proj.weight");
  const auto even = json(changed);
  EXPECT_NEAR(even["attention_maps"][0]["weights"][3][1].get<double>(), 0.25, 1e-6) << "zero scores give equal weights";
  EXPECT_EQ(json(options)["overall"], before["overall"]);
}

TEST(Learned, Learned_IsReadFromModelFolder) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / fmt::format("learned_{}", ::getpid());
  std::filesystem::create_directories(folder);
  LanguageModel model = small_model("elastic", -1.25);
  model.save(folder);
  const LearnedParameters learned = learned_parameters(folder);
  ASSERT_EQ(learned.tau.size(), 3u);
  EXPECT_EQ(learned.tau[1], (std::vector<double>{-1.25, -1.25, -1.25, -1.25}));
  ASSERT_EQ(learned.distance_bias.size(), 3u);
  EXPECT_EQ(learned.distance_bias[2][3][5], model.distance_bias(2)[3][5].item<float>());
  EXPECT_EQ(learned.tau_initial, -1.25);
  LanguageModel plain = small_model("softmax");
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  plain.save(folder);
  EXPECT_TRUE(learned_parameters(folder).tau.empty());
  std::filesystem::remove_all(folder);
}

// Analyzes a text of 32k tokens. A matrix of attention weights would need 4 GiB per head in fp32; hidden states and
// statistics need little memory. The analysis runs in a separate process, so that its peak memory can be measured.
TEST(Analysis, LongText_NeedsLittleMemory) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the shadow memory of the address sanitizer prevents a memory measurement";
#endif
  std::string text;
  while (text.size() < 32768) text += kText;
  text.resize(32768);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    at::set_num_threads(1);  // a forked process has no OpenMP threads
    LanguageModel model = small_model("elastic");
    const auto tokenizer = load_tokenizer("bytes");
    rusage before{}, after{};
    getrusage(RUSAGE_SELF, &before);
    AnalysisOptions options;
    options.length = 32768;
    options.samples = 1;
    options.progress = false;
    const Analysis result = analyze(model, *tokenizer, text_source(*tokenizer, text, "long.txt"), options);
    getrusage(RUSAGE_SELF, &after);
    const long megabytes = (after.ru_maxrss - before.ru_maxrss) / 1024;
    std::fprintf(stderr, "32k tokens: the peak memory grew by %ld MiB\n", megabytes);
    _exit(result.samples == 1 && result.length == 32768 && megabytes < 300 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace lazy::sinks
