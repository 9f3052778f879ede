#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <regex>

#include "report/length_page.h"
#include "report/plot.h"
#include "support/error_of.h"

namespace lazy::report {
using testing::HasSubstr;
using testing::Not;

// Two models in the format of docs/guides/length.md. The loss of the second model grows strongly with length.
Json study() {
  return Json::parse(R"({
    "schema": "lazy.length/1", "command": "lazy eval", "date": "2026-01-02", "config": {"lengths": [256, 512, 1024]},
    "models": [
      {"label": "lazy", "path": "runs/lazy/model", "variant": "", "kind": "lazy",
       "rope_base": 150000, "training_length": 256},
      {"label": "<soft>", "path": "runs/soft/model", "variant": "rope-base=500000", "kind": "transformer",
       "rope_base": 500000, "training_length": 256}],
    "results": {
      "wikitext": {"source": "data/eval", "documents": 62,
        "models": [
          {"unit": "document", "units": 62, "skipped": [{"length": 99999, "why": "the text has 5000 tokens"}],
           "lengths": [
            {"length": 256, "loss": 3, "perplexity": 20, "perplexity_interval": [19, 21],
             "word_perplexity": 40, "word_perplexity_interval": [38, 42], "words": 9},
            {"length": 512, "loss": 3, "perplexity": 21, "perplexity_interval": null,
             "word_perplexity": 41, "word_perplexity_interval": [39, 43], "words": 9,
             "positions": [{"from": 1, "to": 1, "loss": 7, "loss_interval": [6, 8]},
                           {"from": 257, "to": 512, "loss": 3, "loss_interval": [2.9, 3.1]}]}]},
          {"unit": "document", "units": 62, "skipped": [], "lengths": [
            {"length": 256, "loss": 3, "perplexity": 20, "word_perplexity": 42,
             "word_perplexity_interval": [40, 44], "words": 9},
            {"length": 512, "loss": null, "perplexity": null, "word_perplexity": null,
             "word_perplexity_interval": null, "words": 9,
             "positions": [{"from": 1, "to": 1, "loss": 7, "loss_interval": null},
                           {"from": 257, "to": 512, "loss": 9, "loss_interval": [8, 10]}]},
            {"length": 1024, "loss": 5, "perplexity": 150, "word_perplexity": 900,
             "word_perplexity_interval": [800, 1000], "words": 9,
             "positions": [{"from": 1, "to": 1, "loss": 7, "loss_interval": null}]}]}],
        "change_against_first": [
          {"model": 1, "lengths": [{"length": 512, "difference": 1.25, "interval": [1.1, 1.4]}]}]},
      "lambada_openai": {"source": "data/eval",
        "models": [
          {"unit": "item", "units": 5153, "skipped": [],
           "standard": {"max_length": 256, "word_accuracy": 0.25, "word_perplexity": 60},
           "lengths": [{"length": 256, "perplexity": 30, "word_accuracy": 0.2, "word_perplexity": 70}]},
          {"unit": "item", "units": 5153, "skipped": [],
           "standard": {"max_length": 256, "word_accuracy": 0.5, "word_perplexity": 50},
           "lengths": [{"length": 256, "perplexity": 31, "word_accuracy": 0.3, "word_perplexity": 80}]}]},
      "passkey": {"models": [
          {"skipped": [], "lengths": [
            {"length": 256, "depths": [
              {"depth": 0, "exact": 1, "log_likelihood": -1, "log_likelihood_absent": -9},
              {"depth": 1, "exact": 0.4, "log_likelihood": -2, "log_likelihood_absent": -9}]},
            {"length": 1024, "depths": [
              {"depth": 0, "exact": 0.2, "log_likelihood": -9, "log_likelihood_absent": -8},
              {"depth": 1, "exact": 0, "log_likelihood": -8, "log_likelihood_absent": -8}]}]},
          {"skipped": [], "lengths": [
            {"length": 256, "depths": [
              {"depth": 0, "exact": 1, "log_likelihood": -1, "log_likelihood_absent": -9},
              {"depth": 1, "exact": 1, "log_likelihood": -1, "log_likelihood_absent": -9}]}]}]}}})");
}

std::string page_of(const Json& json) {
  return render_lengths(json, "lengths.json", {"lazy eval lazy <soft> --lengths 256,512,1024", "2026-01-02"});
}

TEST(LengthPage, Page_ShowsEveryTaskAndFetchesNothing) {
  const std::string page = page_of(study());
  for (const char* id : {"models", "wikitext", "lambada_openai", "passkey", "run"})
    EXPECT_THAT(page, HasSubstr(std::string("<section id=\"") + id + "\">"));
  EXPECT_THAT(page, HasSubstr("&lt;soft&gt;"));
  EXPECT_THAT(page, Not(HasSubstr("<soft>")));
  EXPECT_THAT(page, Not(HasSubstr("nan")));
  EXPECT_FALSE(std::regex_search(page, std::regex("https?://|<script|<link|<img|url\\(|@import")));
  EXPECT_THAT(page, Names({"logarithmic"}));     // the range 38 to 1000 needs a logarithmic axis
  EXPECT_THAT(page, Names({"38.00", "42.00"}));  // the interval of the perplexity per word
  EXPECT_THAT(page, testing::AllOf(Names({99999}), HasSubstr("the text has 5000 tokens")));
  EXPECT_THAT(page, Names({"1.100", "1.400"}));
  EXPECT_THAT(page, Names({"40.0"}));  // the share of exact answers at depth 1
  EXPECT_THAT(page, HasSubstr(">1k</text>"));
  EXPECT_THAT(page, HasSubstr("class=\"reference\""));  // at length 1k the planted key lowers the log-likelihood
}

TEST(LengthPage, BrokenFile_IsReportedWithItsField) {
  const auto message = [](const std::function<void(Json&)>& damage) {
    Json json = study();
    damage(json);
    return error_of([&] { page_of(json); });
  };
  EXPECT_THAT(message([](Json& j) { j["schema"] = "lazy.length/9"; }),
              Names({"lengths.json", "schema", "lazy.length/1", "lazy.length/9"}));
  EXPECT_THAT(message([](Json& j) { j["models"] = Json::array(); }), Names({"lengths.json", "models"}));
  EXPECT_THAT(message([](Json& j) { j["results"]["passkey"]["models"].erase(1); }), Names({"results.passkey.models"}));
  EXPECT_THAT(message([](Json& j) { j["results"]["passkey"]["models"][0]["lengths"][1]["depths"][0]["exact"] = 3; }),
              Names({"results.passkey.models[0].lengths[1].depths[0].exact", 3}));
  EXPECT_THAT(message([](Json& j) { j["results"]["wikitext"]["models"][0]["lengths"][0].erase("length"); }),
              Names({"results.wikitext.models[0].lengths[0].length"}));
}

TEST(LengthPage, Ticks_OfLengthAndLogAxes) {
  const auto labels = [](const std::vector<Tick>& ticks) {
    std::string text;
    for (const Tick& tick : ticks) text += tick.label + " ";
    return text;
  };
  EXPECT_EQ(labels(power_ticks(512, 8192, 9)), "512 1k 2k 4k 8k ");
  EXPECT_EQ(labels(power_ticks(1, 4096, 5)), "1 8 64 512 4k ");
  EXPECT_EQ(labels(power_ticks(600, 5000, 9)), "1k 2k 4k ");
  EXPECT_EQ(labels(log_ticks(8, 900, 9)), "10 20 50 100 200 500 ");
  EXPECT_EQ(labels(log_ticks(8, 90000, 4)), "10 100 1k 10k ");
  EXPECT_EQ(length_label(1536), "1.5k");
  const Scale scale{Scale::Kind::log, 10, 1000, 0, 100};
  EXPECT_NEAR(scale(100), 50, 1e-9);
}

}  // namespace lazy::report
