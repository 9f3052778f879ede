#include "synthetic_run.h"

#include <fmt/format.h>

#include <cmath>

#include "core/file.h"
#include "core/random.h"
#include "core/text.h"

namespace lazy::report {
namespace fs = std::filesystem;
namespace {

double normal(Random* random) {
  return std::sqrt(-2 * std::log(1 - random->uniform())) * std::cos(2 * 3.14159265358979 * random->uniform());
}

std::string log_lines(const SyntheticRun& what, Random* random) {
  std::string lines;
  const double floor = what.lazy ? 3.52 : 3.55;
  for (int step = 1; step <= 1000; ++step) {
    const double mean = floor + 4.6 * std::exp(-step / 45.0) + 1.5 * std::pow(step / 40.0 + 1, -0.75);
    Json entry;
    entry["step"] = step;
    entry["tokens"] = step * 2048;
    entry["time"] = 0.24 * step;
    entry["loss_metrics/global_avg_loss"] = mean + 0.12 * normal(random);
    entry["throughput(tps)"] = 8400 + 300 * normal(random) - (what.lazy ? 900 : 0);
    entry["lr"] = 3e-3;
    if (step % 100 == 0) {
      entry["validation_metrics/loss"] = mean + 0.03;
      entry["validation_metrics/bits_per_byte"] = (mean + 0.03) / std::log(2.0) / 2.93;
      for (int layer = 0; layer < what.layers; ++layer) {
        const auto add = [&](const char* key, double value) {
          entry[fmt::format("attention/layer_{:02}/{}", layer, key)] = value;
        };
        const double sink = what.lazy ? 0.01 * (layer + 1) : 0.1 + 0.4 * step / 1000.0 * (layer + 1) / what.layers;
        const double released = what.lazy ? 0.3 + 0.1 * layer / what.layers : 0;
        add("sink_ratio", sink);
        add("density", 1 - sink - released);
        add("released_mass", released);
        add("alive_fraction", what.lazy ? 0.4 - 0.1 * step / 1000.0 : 1);
        if (what.lazy) add("tau_mean", -1 - 0.002 * step / (layer + 1));
      }
    }
    lines += entry.dump() + "\n";
  }
  return lines;
}

Json sinks(const SyntheticRun& what, Random* random) {
  Json json, per_head;
  const double count = what.layers * what.heads;
  double sums[5] = {};
  const char* keys[5] = {"sink_ratio", "density", "released_mass", "alive_fraction", "sink_1_0.3"};
  for (int l = 0; l < what.layers; ++l) {
    Json rows[5];
    for (int h = 0; h < what.heads; ++h) {
      const double sink =
          what.lazy ? 0.004 * random->uniform() : 0.03 + 0.55 * std::pow(random->uniform(), 2) * (l > 0);
      const double released = what.lazy ? 0.4 + 0.45 * random->uniform() : 0;
      const double values[5] = {sink, 1 - sink - released, released, what.lazy ? 0.12 + 0.3 * random->uniform() : 1.0,
                                sink > 0.3 ? 0.9 : 0.0};
      for (int k = 0; k < 5; ++k) rows[k].push_back(values[k]), sums[k] += values[k] / count;
    }
    for (int k = 0; k < 5; ++k) per_head[keys[k]].push_back(rows[k]);
  }
  json["format"] = "lazy-sinks";
  json["version"] = 2;
  json["model"] = {{"path", "runs/" + what.name + "/model"}, {"normalizer", what.lazy ? "elastic" : "softmax"}};
  json["text"] = {{"path", "perldoc.txt"}};
  json["settings"] = {{"length", 256},     {"samples", 64},       {"bos", false},
                      {"sink_length", 64}, {"sink_samples", 100}, {"threshold", 0.3}};
  for (int k = 0; k < 5; ++k) json["overall"][keys[k]] = sums[k];
  json["per_head"] = per_head;
  json["command"] =
      "lazy sinks runs/" + what.name + "/model --text perldoc.txt --json runs/" + what.name + "/sinks.json";
  const std::vector<std::string> words = split(
      "▁The ▁first ▁element ▁of ▁the ▁array ▁is ▁re moved ▁by ▁shift , ▁which ▁short ens ▁the ▁array ▁by ▁1 "
      "▁and ▁moves ▁everything ▁down .",
      ' ');
  for (int layer : {0, what.layers - 1}) {
    Json map{{"layer", layer}, {"head", 1}};
    for (int i = 0; i < what.map_tokens; ++i) {
      std::string word = words[static_cast<size_t>(i) % words.size()];
      if (word.rfind("▁", 0) == 0) word = " " + word.substr(3);
      map["tokens"].push_back(word);
      std::vector<double> row;
      double sum = 0;
      for (int j = 0; j <= i; ++j) {
        row.push_back(std::exp(1.6 * normal(random) - 0.12 * (i - j) + (!what.lazy && j == 0 ? 4.0 : 0.0)));
        sum += row.back();
      }
      for (double& weight : row) weight = what.lazy ? std::max(0.0, weight / sum - 1.0 / (i + 1)) : weight / sum;
      map["weights"].push_back(row);
    }
    json["attention_maps"].push_back(map);
  }
  return json;
}

}  // namespace

fs::path write_synthetic_run(const fs::path& parent, const SyntheticRun& what) {
  Random random(what.seed);
  const fs::path folder = parent / what.name;
  fs::create_directories(folder);
  const auto write = [&](const char* file, const std::string& text) { write_file_atomic(folder / file, text); };
  write("run.json", Json{{"name", what.name},
                         {"kind", what.lazy ? "lazy" : "transformer"},
                         {"model",
                          {{"hidden_size", 192},
                           {"num_hidden_layers", what.layers},
                           {"normalizer", what.lazy ? "elastic" : "softmax"}}},
                         {"parameters", {{"total", 2360000 + 4112 * what.lazy}, {"embedding", 786432}}},
                         {"tokens_per_step", 2048},
                         {"tokenizer", "sentencepiece, 4096 pieces"},
                         {"dtype", "bf16"},
                         {"version", "0.1.0"},
                         {"started", "2026-01-02T03:04:05Z"}}
                        .dump(2));
  write("config.toml",
        fmt::format(
            "[model]\nkind = \"{}\"\nhidden_size = 192\nnum_layers = {}\nnum_heads = {}\n\n[training]\nsteps = 1000\n"
            "seq_len = 256\nseed = 42\n",
            what.lazy ? "lazy" : "transformer", what.layers, what.heads));
  write("log.jsonl", log_lines(what, &random));
  const double loss = what.lazy ? 3.6732 : 3.6989;
  const Json heldout{{"alias", "heldout"},
                     {"loss,none", loss},
                     {"bits_per_byte,none", loss / std::log(2.0) / 2.93},
                     {"perplexity,none", std::exp(loss)}};
  write("eval.json",
        Json{{"results", {{"heldout", heldout}, {"wikitext", {{"word_perplexity,none", what.lazy ? 612.4 : 634.9}}}}},
             {"config", {{"command", "lazy eval runs/" + what.name + "/model --corpus corpus --output eval.json"}}}}
            .dump(2));
  write("sinks.json", sinks(what, &random).dump());
  Json samples;
  samples.push_back({{"prompt", "To open a file for reading,"},
                     {"text",
                      " use the three-argument form of open and check what it returns:\n\n    open(my $fh, \"<\", "
                      "$name)\n        or die "
                      "\"Can't open $name: $!\";\n\nThe filehandle is closed when it goes out of scope."}});
  samples.push_back({{"prompt", "A regular expression"},
                     {"text",
                      "A regular expression is matched from left to right; the <first> alternative that lets the whole "
                      "pattern match wins, "
                      "which is not always the longest one."}});
  write("samples.json", samples.dump(2));
  return folder;
}

LearnedParameters synthetic_learned(const SyntheticRun& what) {
  LearnedParameters learned;
  if (!what.lazy) return learned;
  Random random(what.seed + 100);
  for (int l = 0; l < what.layers; ++l) {
    learned.tau.emplace_back();
    learned.distance_bias.emplace_back();
    for (int h = 0; h < what.heads; ++h) {
      learned.tau.back().push_back(-1 - 0.3 * l + 0.25 * normal(&random));
      std::vector<double> bias;
      const double strength = 0.6 + random.uniform(), reach = 4 + 30 * random.uniform();
      for (int d = 0; d < what.window; ++d) {
        bias.push_back(strength * std::exp(-d / 2.0) - 0.35 * std::exp(-std::pow((d - 5) / reach, 2)) +
                       0.004 * normal(&random));
      }
      learned.distance_bias.back().push_back(bias);
    }
  }
  return learned;
}

}  // namespace lazy::report
