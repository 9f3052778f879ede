#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <fstream>
#include <regex>

#include "core/file.h"
#include "report/html.h"
#include "report/report.h"
#include "report/run.h"
#include "report/style.h"
#include "support/error_of.h"
#include "synthetic_run.h"

namespace lazy::report {
namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

class Page : public testing::Test {
 protected:
  fs::path folder_ = fs::path(testing::TempDir()) / ("report_" + std::to_string(::getpid()));
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  RunData run(const SyntheticRun& what) {
    RunData result = load_run(write_synthetic_run(folder_, what));
    result.learned = synthetic_learned(what);
    return result;
  }
  RunData lazy() { return run({}); }
  RunData softmax() { return run({.name = "softmax", .lazy = false, .seed = 2}); }
};

TEST_F(Page, TwoRuns_HaveEverySection) {
  const std::string page = render({softmax(), lazy()}, {"lazy report runs/lazy runs/softmax", "2026-01-02"});
  for (const char* id :
       {"curves", "layers", "results", "weights", "offsets", "distance-bias", "maps", "samples", "run"}) {
    EXPECT_THAT(page, HasSubstr(std::string("<section id=\"") + id + "\">"));
  }
  EXPECT_THAT(page, HasSubstr("lazy report runs/lazy runs/softmax"));
  EXPECT_THAT(page, HasSubstr("the &lt;first&gt; alternative"));  // text is escaped
  EXPECT_THAT(page, Not(HasSubstr("nan")));
  // The page fetches nothing: it contains no address.
  EXPECT_FALSE(std::regex_search(page, std::regex("https?://|<script|<link|<img|url\\(|@import")));
}

TEST_F(Page, LayerSection_HasOneCurvePerLayer) {
  const RunData deep = run({.layers = 24});
  ASSERT_EQ(deep.by_layer.at("tau_mean").size(), 24u);
  ASSERT_EQ(deep.by_layer.at("tau_mean")[3].size(), 10u);
  EXPECT_DOUBLE_EQ(deep.by_layer.at("tau_mean")[3].back().second, -1 - 0.002 * 1000 / 4);
  const auto count_in_layers = [](const std::string& page, const std::string& part) {
    const size_t begin = page.find("<section id=\"layers\">"), end = page.find("</section>", begin);
    size_t found = 0;
    for (size_t at = page.find(part, begin); at < end; at = page.find(part, at + 1)) ++found;
    return found;
  };
  const std::string page = render({deep}, {});
  EXPECT_EQ(count_in_layers(page, "<span class=\"run\">"), static_cast<size_t>(kSeriesColors))
      << "only some of the 24 layers are shown";
  EXPECT_EQ(count_in_layers(page, " 23</span>"), 1u) << "the last layer must be shown";
  // Each measure has one panel; softmax has no offsets.
  const RunData plain = softmax();
  EXPECT_FALSE(plain.by_layer.contains("tau_mean"));
  EXPECT_EQ(count_in_layers(page, "class=\"panel\""), deep.by_layer.size());
  // A measure that is equal in all layers and steps is printed as text instead: softmax has no released mass.
  size_t varying = 0;
  for (const auto& [name, curves] : plain.by_layer) {
    const bool flat = std::all_of(curves.begin(), curves.end(), [&](const Curve2d& curve) {
      return std::all_of(curve.begin(), curve.end(),
                         [&](const auto& point) { return point.second == curves[0][0].second; });
    });
    varying += flat ? 0 : 1;
  }
  EXPECT_LT(varying, plain.by_layer.size());
  EXPECT_EQ(count_in_layers(render({plain}, {}), "class=\"panel\""), varying);
}

// A running run is distinguished from a killed run by the lock on .lock.
TEST_F(Page, RunningRun_ReportsItsStatus) {
  const fs::path folder = write_synthetic_run(folder_, {});
  EXPECT_EQ(status_text(load_run(folder)), "");  // 1000 steps of 1000
  std::ofstream(folder / "config.toml") << "[training]\nsteps = 3000\n";
  EXPECT_EQ(load_run(folder).state, RunData::State::unknown);  // without a lock file the state is unknown
  std::ofstream(folder / ".lock").close();
  EXPECT_THAT(status_text(load_run(folder)), Names({1000, 3000, (folder / "config.toml").string(), "--resume"}));
  const int fd = ::open((folder / ".lock").c_str(), O_RDWR);
  ASSERT_EQ(::flock(fd, LOCK_EX), 0);
  const RunData running = load_run(folder);
  EXPECT_NEAR(running.seconds_left.value(), 2000 * 0.24, 1e-6);
  EXPECT_THAT(status_text(running), Names({1000, 3000, "8:00"}));
  EXPECT_THAT(render({running}, {}), HasSubstr(status_text(running)));
  ::close(fd);
}

TEST_F(Page, Headline_IsComputedFromRuns) {
  RunData a = lazy(), b = softmax();
  a.bits_per_byte = 1.8;
  b.bits_per_byte = 1.836;
  Headline head = headline({a, b});
  EXPECT_THAT(head.title, Names({"softmax", "1.800", "1.836", "bits"}));
  EXPECT_THAT(head.detail, Names({"0.036", "better", "2.0", percent(b.sinks->overall.sink_ratio)}));
  EXPECT_THAT(head.detail, Names({"55M"}));  // the text cites 55M-parameter runs whose early lead shrank
  a.sinks->length = b.sinks->length = 64;    // H_64 = 4.7439
  a.sinks->bos = b.sinks->bos = true;
  const std::string with_bos = headline({a, b}).detail;
  EXPECT_THAT(with_bos, Names({"7.4", "H_T", 64, "BOS"}));
  a.sinks->bos = b.sinks->bos = false;
  EXPECT_NE(headline({a, b}).detail, with_bos);
  a.tokens = b.tokens = 400e6;
  EXPECT_THAT(headline({a, b}).detail, Not(Names({"55M"})));
  a.tokens = b.tokens = 1e6;
  std::swap(*a.bits_per_byte, *b.bits_per_byte);
  EXPECT_THAT(headline({a, b}).detail, Names({"0.036", "worse"}));
  EXPECT_THAT(headline({a, b}).detail, Not(Names({"55M"})));
  b.bits_per_byte = 1.83602;  // equal to the printed digits
  EXPECT_THAT(headline({a, b}).detail, testing::AllOf(Not(Names({"better"})), Not(Names({"worse"}))));
  b.tokens *= 2;
  EXPECT_THAT(headline({a, b}).detail, Names({grouped(a.tokens), grouped(b.tokens)}));
  a.bits_per_byte.reset();
  EXPECT_THAT(headline({a, b}).title, Names({"3.673", "3.699", "nats"}));
  EXPECT_THAT(headline({b}).title, Names({"softmax", "1.836", "bits"}));
  RunData c = run({.name = "wide", .seed = 3});
  EXPECT_THAT(headline({a, b, c}).title, Names({3, "lazy", "3.673"}));
}

TEST_F(Page, BenchmarkAndLengthTables_HaveOneRowPerRun) {
  const auto with = [&](const std::string& name, double hellaswag) {
    const fs::path folder = write_synthetic_run(folder_, {.name = name});
    Json eval = load_json(folder / "eval.json");
    eval["results"]["hellaswag"] = {{"acc,none", 0.9}, {"acc_norm,none", hellaswag}, {"acc_norm_stderr,none", 0.0044}};
    eval["results"]["boolq"] = {{"acc,none", 0.378}, {"acc_stderr,none", "N/A"}};
    eval["average"] = {{"acc", 0.3181}, {"metrics", {{"hellaswag", "acc_norm"}, {"boolq", "acc"}}}};
    eval["chance"]["hellaswag"] = {{"random", 0.25}};
    write_file_atomic(folder / "eval.json", eval.dump());
    Json lengths{{"command", "lazy eval"}};
    for (const int64_t n : {256, 4096})
      lengths["results"]["heldout"]["models"][0]["lengths"].push_back(
          {{"length", n}, {"loss", 5.0 + static_cast<double>(n) / 65536}});
    write_file_atomic(folder / "lengths.json", lengths.dump());
    return load_run(folder);
  };
  const std::string page = render({with("one", 0.2571), with("two", 0.2618), softmax()}, {});
  EXPECT_THAT(page, HasSubstr("hellaswag<small>acc_norm</small>"));
  EXPECT_THAT(page, HasSubstr("<td>25.7<small>±0.4</small></td><td>37.8</td><td>31.8</td>"));
  EXPECT_THAT(page, HasSubstr("<td>26.2<small>±0.4</small></td>"));
  EXPECT_THAT(page, HasSubstr("</th><td>25.0</td><td>–</td><td></td>"));
  EXPECT_THAT(page, HasSubstr("<td>5.004</td><td>5.062</td>"));
  EXPECT_THAT(render({softmax()}, {}), Not(HasSubstr("id=\"benchmarks\"")));
  const fs::path folder = folder_ / "one";
  write_file_atomic(folder / "lengths.json", R"({"results": {"heldout": {"models": []}}})");
  EXPECT_THAT(error_of([&] { load_run(folder); }), Names({"lengths.json", "results.heldout.models"}));
}

TEST_F(Page, ManyRuns_AreShownAsRows) {
  std::vector<RunData> runs;
  for (const char* name : {"a", "b", "c", "d", "e", "f"}) runs.push_back(run({.name = name}));
  EXPECT_THAT(render(runs, {}), HasSubstr("<table class=\"results\">"));
  runs.push_back(run({.name = "g", .lazy = false, .seed = 9}));
  runs.back().heldout_loss = 1.25;
  const std::string page = render(runs, {});
  EXPECT_THAT(page, HasSubstr("<table class=\"results wide\">"));
  EXPECT_THAT(page, HasSubstr("<td class=\"best\">1.2500</td>"));
}

TEST_F(Page, MissingFiles_AreOmittedWithNote) {
  for (const char* file : {"eval.json", "sinks.json", "samples.json", "log.jsonl", "config.toml"}) {
    const fs::path folder = write_synthetic_run(folder_, {.name = "partial"});
    fs::remove(folder / file);
    const RunData partial = load_run(folder);
    ASSERT_EQ(partial.missing.size(), 1u) << file;
    EXPECT_THAT(partial.missing[0], Names({std::string(file)}));
    EXPECT_THAT(render({partial}, {}), HasSubstr(partial.missing[0]));
  }
  const fs::path folder = folder_ / "only_log";
  fs::create_directories(folder);
  write_file_atomic(folder / "log.jsonl",
                    "{\"step\":1,\"tokens\":10,\"loss_metrics/global_avg_loss\":9.5}\n{\"step\":2,");
  const RunData run = load_run(folder);
  EXPECT_EQ(run.train_loss.size(), 1u);  // the incomplete last line is skipped
  EXPECT_THAT(render({run}, {}), HasSubstr("only_log"));
}

TEST_F(Page, BrokenFiles_NameFileLineAndField) {
  const fs::path folder = write_synthetic_run(folder_, {.name = "broken"});
  const auto error_with = [&](const char* file, const std::string& text) {
    const std::string former = read_file(folder / file);
    write_file_atomic(folder / file, text);
    const std::string message = error_of([&] { load_run(folder); });
    write_file_atomic(folder / file, former);
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  };
  EXPECT_THAT(error_with("log.jsonl", "{\"step\":1,\"tokens\":10}\n{\"step\":\n"), Names({"log.jsonl:2", "JSON"}));
  EXPECT_THAT(error_with("log.jsonl", "{\"step\":1}\n"), Names({"log.jsonl:1", "tokens"}));
  EXPECT_THAT(error_with("log.jsonl", "{\"step\":1,\"tokens\":\"ten\"}\n"),
              IsMessage("report: " + (folder / "log.jsonl").string() + ":1: tokens: expected a number, found \"ten\""));
  EXPECT_THAT(error_with("eval.json", "{\"results\": 3}"), Names({"eval.json", "results", 3}));
  EXPECT_THAT(error_with("eval.json", "{\"results\""), Names({"eval.json", "JSON"}));
  EXPECT_THAT(error_with("eval.json", "{\"results\": 1e999}"), Names({"eval.json", "JSON", "1e999"}));
  EXPECT_THAT(error_with("config.toml", "[model\n"), Names({"config.toml:1"}));
  EXPECT_THAT(error_with("samples.json", "[{\"prompt\": \"a\"}]"), Names({"samples.json", "samples[0].text"}));
  Json sinks = load_json(folder / "sinks.json");
  sinks["per_head"]["density"][1].erase(0);
  EXPECT_THAT(error_with("sinks.json", sinks.dump()), Names({"sinks.json", "per_head.density[1]"}));
  sinks = load_json(folder / "sinks.json");
  sinks["attention_maps"][0]["weights"][3].push_back(0.5);
  EXPECT_THAT(error_with("sinks.json", sinks.dump()), Names({"sinks.json", "attention_maps[0].weights[3]", 4}));
  EXPECT_THAT(error_of([&] { load_run(folder_ / "absent"); }), Names({(folder_ / "absent").string()}));
  fs::create_directories(folder_ / "empty");
  EXPECT_THAT(error_of([&] { load_run(folder_ / "empty"); }),
              Names({(folder_ / "empty").string(), "config.toml", "run.json", "log.jsonl"}));
}

TEST_F(Page, NanLoss_IsDrawnAsGap) {
  RunData run = lazy();
  for (auto& [tokens, loss] : run.train_loss) loss = tokens > 1e6 ? NAN : loss;
  run.heldout_loss = NAN;
  run.bits_per_byte = NAN;
  const std::string page = render({run}, {});
  EXPECT_THAT(page, Not(HasSubstr("Lnan")));
  EXPECT_THAT(page, Not(HasSubstr(">nan<")));
}

TEST_F(Page, EqualNames_AreReplacedByFolders) {
  fs::create_directories(folder_ / "other");
  RunData a = lazy(), b = load_run(write_synthetic_run(folder_ / "other", {.name = "lazy"}));
  const std::string page = render({a, b}, {});
  EXPECT_THAT(page, HasSubstr((folder_ / "other" / "lazy").string()));
}

}  // namespace lazy::report
