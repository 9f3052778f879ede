#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <fstream>
#include <regex>

#include "core/error.h"
#include "core/file.h"
#include "report/report.h"
#include "report/run.h"
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

TEST_F(Page, ThePairHasEverySection) {
  const std::string page = render({softmax(), lazy()}, {"lazy report runs/lazy runs/softmax", "2026-01-02"});
  for (const char* id :
       {"curves", "layers", "results", "weights", "offsets", "distance-bias", "maps", "samples", "run"}) {
    EXPECT_THAT(page, HasSubstr(std::string("<section id=\"") + id + "\">"));
  }
  EXPECT_THAT(page, HasSubstr("lazy report runs/lazy runs/softmax"));
  EXPECT_THAT(page, HasSubstr("the &lt;first&gt; alternative"));  // text is escaped
  EXPECT_THAT(page, Not(HasSubstr("nan")));
  // Nothing is fetched: no address appears in the page at all.
  EXPECT_FALSE(std::regex_search(page, std::regex("https?://|<script|<link|<img|url\\(|@import")));
}

TEST_F(Page, LayersHaveTheirCurves) {
  const RunData deep = run({.layers = 24});
  ASSERT_EQ(deep.by_layer.at("tau_mean").size(), 24u);
  ASSERT_EQ(deep.by_layer.at("tau_mean")[3].size(), 10u);
  EXPECT_DOUBLE_EQ(deep.by_layer.at("tau_mean")[3].back().second, -1 - 0.002 * 1000 / 4);
  const std::string page = render({deep, softmax()}, {});
  EXPECT_THAT(page, HasSubstr("layer 24</span>"));
  EXPECT_THAT(page, HasSubstr("8 of 24 layers are shown"));
  EXPECT_THAT(page, HasSubstr("Offset τ of lazy against training tokens"));
  EXPECT_THAT(page, Not(HasSubstr("Offset τ of softmax against training tokens")));
}

// A lock held on .lock is what tells a running run from one that was killed.
TEST_F(Page, ARunUnderWaySaysSo) {
  const fs::path folder = write_synthetic_run(folder_, {});
  EXPECT_EQ(status_text(load_run(folder)), "");  // 1000 steps of 1000
  std::ofstream(folder / "config.toml") << "[training]\nsteps = 3000\n";
  EXPECT_EQ(load_run(folder).state, RunData::State::unknown);  // nothing says who trained it
  std::ofstream(folder / ".lock").close();
  EXPECT_THAT(status_text(load_run(folder)), HasSubstr("stopped at step 1000 of 3000; lazy train "));
  const int fd = ::open((folder / ".lock").c_str(), O_RDWR);
  ASSERT_EQ(::flock(fd, LOCK_EX), 0);
  const RunData running = load_run(folder);
  EXPECT_NEAR(running.seconds_left.value(), 2000 * 0.24, 1e-6);
  EXPECT_EQ(status_text(running), "running, step 1000 of 3000, 8:00 left");
  EXPECT_THAT(render({running}, {}), HasSubstr("lazy: running, step 1000 of 3000, 8:00 left."));
  ::close(fd);
}

TEST_F(Page, TheHeadlineIsComputed) {
  RunData a = lazy(), b = softmax();
  a.bits_per_byte = 1.8;
  b.bits_per_byte = 1.836;
  Headline head = headline({a, b});
  EXPECT_EQ(head.title, "Lazy Attention vs softmax: 1.800 against 1.836 bits a byte");
  EXPECT_THAT(head.detail, HasSubstr("0.036 bits a byte better than its softmax twin on held-out text (2.0 %)"));
  EXPECT_THAT(head.detail, HasSubstr("Softmax puts"));
  EXPECT_THAT(head.detail, HasSubstr("A lead this early is a head start"));
  a.sinks->length = b.sinks->length = 64;  // H_64 = 4.7439
  a.sinks->bos = b.sinks->bos = true;
  EXPECT_THAT(headline({a, b}).detail, HasSubstr("Softmax over equal scores would put 7.4 % there (H_T / T at 64 "
                                                 "tokens); BOS came first in every sample"));
  a.tokens = b.tokens = 400e6;
  EXPECT_THAT(headline({a, b}).detail, Not(HasSubstr("head start")));
  a.tokens = b.tokens = 1e6;
  std::swap(*a.bits_per_byte, *b.bits_per_byte);
  EXPECT_THAT(headline({a, b}).detail, HasSubstr("0.036 bits a byte worse than its softmax twin"));
  EXPECT_THAT(headline({a, b}).detail, Not(HasSubstr("head start")));
  b.bits_per_byte = 1.83602;
  EXPECT_THAT(headline({a, b}).detail, HasSubstr("are equal to the printed digits"));
  b.tokens *= 2;
  EXPECT_THAT(headline({a, b}).detail, HasSubstr("(the runs differ)"));
  a.bits_per_byte.reset();
  EXPECT_THAT(headline({a, b}).title, HasSubstr("nats a token"));
  EXPECT_THAT(headline({b}).title, HasSubstr("softmax: 1.836 bits a byte"));
  RunData c = run({.name = "wide", .seed = 3});
  EXPECT_THAT(headline({a, b, c}).title, HasSubstr("3 runs:"));
}

TEST_F(Page, BenchmarksAndLengthsHaveARowARun) {
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
  EXPECT_THAT(page, HasSubstr("guessing</th><td>25.0</td><td>–</td><td></td>"));
  EXPECT_THAT(page, HasSubstr("<td>5.004</td><td>5.062</td>"));
  EXPECT_THAT(render({softmax()}, {}), Not(HasSubstr("id=\"benchmarks\"")));
  const fs::path folder = folder_ / "one";
  write_file_atomic(folder / "lengths.json", R"({"results": {"heldout": {"models": []}}})");
  EXPECT_THAT(error_of([&] { load_run(folder); }),
              HasSubstr("lengths.json: results.heldout.models: expected one model"));
}

TEST_F(Page, ManyRunsHaveARowEach) {
  std::vector<RunData> runs;
  for (const char* name : {"a", "b", "c", "d", "e", "f"}) runs.push_back(run({.name = name}));
  EXPECT_THAT(render(runs, {}), HasSubstr("<table class=\"results\"><thead><tr><th scope=\"col\">Measure</th>"));
  runs.push_back(run({.name = "g", .lazy = false, .seed = 9}));
  runs.back().heldout_loss = 1.25;
  const std::string page = render(runs, {});
  EXPECT_THAT(
      page,
      HasSubstr("<table class=\"results wide\"><thead><tr><th scope=\"col\">Run</th><th scope=\"col\">Held-out loss"));
  EXPECT_THAT(page, HasSubstr("<td class=\"best\">1.2500</td>"));
}

TEST_F(Page, MissingPartsAreLeftOutWithANote) {
  for (const char* file : {"eval.json", "sinks.json", "samples.json", "log.jsonl", "config.toml"}) {
    const fs::path folder = write_synthetic_run(folder_, {.name = "partial"});
    fs::remove(folder / file);
    const std::string page = render({load_run(folder)}, {});
    EXPECT_THAT(page, HasSubstr(std::string("no ") + file)) << file;
  }
  const fs::path folder = folder_ / "only_log";
  fs::create_directories(folder);
  write_file_atomic(folder / "log.jsonl",
                    "{\"step\":1,\"tokens\":10,\"loss_metrics/global_avg_loss\":9.5}\n{\"step\":2,");
  const RunData run = load_run(folder);
  EXPECT_EQ(run.train_loss.size(), 1u);  // the line under way is passed over
  EXPECT_THAT(render({run}, {}), HasSubstr("only_log"));
}

TEST_F(Page, BrokenPartsNameFileLineAndField) {
  const fs::path folder = write_synthetic_run(folder_, {.name = "broken"});
  const auto error_with = [&](const char* file, const std::string& text) {
    const std::string former = read_file(folder / file);
    write_file_atomic(folder / file, text);
    const std::string message = error_of([&] { load_run(folder); });
    write_file_atomic(folder / file, former);
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  };
  EXPECT_THAT(error_with("log.jsonl", "{\"step\":1,\"tokens\":10}\n{\"step\":\n"), HasSubstr("log.jsonl:2: not JSON"));
  EXPECT_THAT(error_with("log.jsonl", "{\"step\":1}\n"), HasSubstr("log.jsonl:1: tokens is missing"));
  EXPECT_THAT(error_with("log.jsonl", "{\"step\":1,\"tokens\":\"ten\"}\n"),
              HasSubstr("tokens: expected a number, found \"ten\""));
  EXPECT_THAT(error_with("eval.json", "{\"results\": 3}"), HasSubstr("eval.json: results: expected an object"));
  EXPECT_THAT(error_with("eval.json", "{\"results\""), HasSubstr("eval.json: not JSON"));
  EXPECT_THAT(error_with("eval.json", "{\"results\": 1e999}"), HasSubstr("eval.json: not JSON: number overflow"));
  EXPECT_THAT(error_with("config.toml", "[model\n"), HasSubstr("config.toml:1"));
  EXPECT_THAT(error_with("samples.json", "[{\"prompt\": \"a\"}]"), HasSubstr("samples[0].text is missing"));
  Json sinks = load_json(folder / "sinks.json");
  sinks["per_head"]["density"][1].erase(0);
  EXPECT_THAT(error_with("sinks.json", sinks.dump()),
              HasSubstr("per_head.density[1]: expected as many numbers as in the first row"));
  sinks = load_json(folder / "sinks.json");
  sinks["attention_maps"][0]["weights"][3].push_back(0.5);
  EXPECT_THAT(error_with("sinks.json", sinks.dump()), HasSubstr("attention_maps[0].weights[3]: expected 4 weights"));
  EXPECT_THAT(error_of([&] { load_run(folder_ / "absent"); }), HasSubstr("expected a run's folder, found nothing"));
  fs::create_directories(folder_ / "empty");
  EXPECT_THAT(error_of([&] { load_run(folder_ / "empty"); }), HasSubstr("found none of its files"));
}

TEST_F(Page, ALossThatIsNotANumberIsShownAsAGap) {
  RunData run = lazy();
  for (auto& [tokens, loss] : run.train_loss) loss = tokens > 1e6 ? NAN : loss;
  run.heldout_loss = NAN;
  run.bits_per_byte = NAN;
  const std::string page = render({run}, {});
  EXPECT_THAT(page, HasSubstr("not a number"));
  EXPECT_THAT(page, Not(HasSubstr("Lnan")));
}

TEST_F(Page, EqualNamesAreToldApartByFolder) {
  fs::create_directories(folder_ / "other");
  RunData a = lazy(), b = load_run(write_synthetic_run(folder_ / "other", {.name = "lazy"}));
  const std::string page = render({a, b}, {});
  EXPECT_THAT(page, HasSubstr((folder_ / "other" / "lazy").string()));
}

}  // namespace lazy::report
