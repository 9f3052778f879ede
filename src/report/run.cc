#include "report/run.h"

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <sstream>

#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "core/toml.h"

namespace lazy::report {
namespace fs = std::filesystem;

namespace {

void flatten(const toml::table& table, const std::string& prefix,
             std::vector<std::pair<std::string, std::string>>* out) {
  for (const auto& [key, node] : table) {
    const std::string name = prefix.empty() ? std::string(key.str()) : prefix + "." + std::string(key.str());
    if (const auto* inner = node.as_table()) {
      flatten(*inner, name, out);
    } else if (const auto* text = node.as_string()) {
      out->emplace_back(name, text->get());
    } else {
      std::ostringstream value;
      node.visit([&](const auto& concrete) { value << concrete; });
      out->emplace_back(name, value.str());
    }
  }
}

// Returns ("section.key", value as text) in alphabetic order of sections and keys. An Error names file and line.
std::vector<std::pair<std::string, std::string>> flatten_toml(const std::string& text, const std::string& file) {
  std::vector<std::pair<std::string, std::string>> settings;
  try {
    flatten(toml::parse(text), "", &settings);
  } catch (const toml::parse_error& e) {
    fail("report", "{}:{}: {}", file, static_cast<int64_t>(e.source().begin.line), std::string(e.description()));
  }
  return settings;
}

// Whether the training process is alive. It holds this lock for its whole life, and the kernel releases the lock when
// it ends.
bool locked(const fs::path& run) {
  const int fd = ::open((run / ".lock").c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool held = ::flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(fd);
  return held;
}

double number(const std::vector<std::pair<std::string, std::string>>& pairs, const std::string& key) {
  for (const auto& [name, value] : pairs) {
    if (name == key) return std::atof(value.c_str());
  }
  return 0;
}

// Sets state and seconds_left from settings, log and lock file.
void find_status(RunData* run) {
  run->total_steps = number(run->settings, "training.steps");  // a resumed run rewrites config.toml but not run.json
  if (run->total_steps == 0) run->total_steps = number(run->facts, "steps");
  if (locked(run->folder)) {
    run->state = RunData::State::running;
  } else if (fs::exists(run->folder / "model") || (run->total_steps > 0 && run->steps >= run->total_steps)) {
    run->state = RunData::State::finished;
  } else if (fs::exists(run->folder / ".lock")) {
    run->state = RunData::State::stopped;
  }
  // The remaining time follows from the rate of the last logged steps, including validations and checkpoints.
  if (run->state != RunData::State::running || run->pace.size() < 2) return;
  const auto& [first_step, first_time] = run->pace.front();
  const auto& [last_step, last_time] = run->pace.back();
  if (last_step <= first_step || last_time <= first_time) return;
  run->seconds_left = (run->total_steps - last_step) * (last_time - first_time) / (last_step - first_step);
}

std::string text_of(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_integer()) return value.dump();
  if (value.is_number_float()) return fmt::format("{:.6g}", value.get<double>());
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  return value.dump();
}

void flatten(const Json& value, const std::string& prefix, std::vector<std::pair<std::string, std::string>>* out) {
  if (value.is_object()) {
    for (const auto& [key, inner] : value.items()) flatten(inner, prefix.empty() ? key : prefix + "." + key, out);
  } else if (!value.is_null()) {
    out->emplace_back(prefix, text_of(value));
  }
}

// "attention/layer_03/sink_ratio" adds a point to the curve of the fourth layer.
void read_layers(const Json& line, double tokens, RunData* run) {
  constexpr std::string_view prefix = "attention/layer_";
  for (const auto& [key, value] : line.items()) {
    if (!key.starts_with(prefix) || !value.is_number()) continue;
    size_t layer = 0;
    const char* end = key.data() + key.size();
    const auto [stop, code] = std::from_chars(key.data() + prefix.size(), end, layer);
    if (code != std::errc() || stop == end || *stop != '/' || layer >= 10000) continue;
    auto& curves = run->by_layer[std::string(stop + 1, end)];
    if (curves.size() <= layer) curves.resize(layer + 1);
    curves[layer].emplace_back(tokens, value.get<double>());
  }
}

// The log has one step per line. A last line without a newline is still being written and is skipped.
void read_log(const fs::path& path, RunData* run) {
  const std::string text = read_file(path);
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;
    const std::string_view line = strip(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
    ++number;
    if (line.empty()) continue;
    const std::string place = fmt::format("{}:{}", path.string(), number);
    const Json json = parse_json(line, place);
    const Field entry(json, place);
    const double tokens = entry["tokens"].number();
    const auto add = [&](const char* key, Curve2d* curve) {
      if (entry.has(key)) curve->emplace_back(tokens, entry[key].number());
    };
    add("loss_metrics/global_avg_loss", &run->train_loss);
    add("validation_metrics/loss", &run->validation_loss);
    add("validation_metrics/bits_per_byte", &run->validation_bits);
    read_layers(json, tokens, run);
    if (entry.has("step") && entry.has("time")) run->pace.emplace_back(entry["step"].number(), entry["time"].number());
    if (run->pace.size() > 50) run->pace.erase(run->pace.begin());
    if (entry.has("throughput(tps)")) {
      const double speed = entry["throughput(tps)"].number();
      if (speed > run->tokens_per_second) run->tokens_per_second = speed;
    }
    run->tokens = std::max(run->tokens, tokens);
    if (entry.has("step")) run->steps = std::max(run->steps, entry["step"].number());
    if (entry.has("time")) run->seconds = std::max(run->seconds, entry["time"].number());
  }
}

std::string kind_of(const RunData& run) {
  std::string normalizer = run.sinks ? run.sinks->normalizer : "";
  for (const auto& [key, value] : run.settings) {
    if (key == "model.normalizer") normalizer = value;
    if (key == "model.kind" && normalizer.empty())
      normalizer = value == "lazy" ? "elastic" : value == "transformer" ? "softmax" : value;
  }
  for (const auto& [key, value] : run.facts) {
    if (!normalizer.empty()) break;
    if (key == "model.normalizer") normalizer = value;
    if (key == "kind") normalizer = value == "lazy" ? "elastic" : value == "transformer" ? "softmax" : value;
  }
  return normalizer == "elastic" ? "lazy" : normalizer;
}

}  // namespace

std::string status_text(const RunData& run) {
  if (run.state == RunData::State::running) {
    if (run.steps == 0) return fmt::format("running, no step of {:.0f} logged yet", run.total_steps);
    return fmt::format("running, step {:.0f} of {:.0f}{}", run.steps, run.total_steps,
                       run.seconds_left ? ", " + human_seconds(*run.seconds_left) + " left" : "");
  }
  if (run.state == RunData::State::stopped) {
    return fmt::format("stopped at step {:.0f} of {:.0f}; lazy train {} --resume continues it", run.steps,
                       run.total_steps, (run.folder / "config.toml").string());
  }
  return "";
}

RunData load_run(const fs::path& folder) {
  if (!fs::is_directory(folder))
    fail("report", "{}: expected the folder of a run, found {}", folder.string(),
         fs::exists(folder) ? "a file" : "no such folder");
  RunData run;
  run.folder = folder;
  run.name = fs::weakly_canonical(folder).filename().string();
  size_t found = 0;
  const auto part = [&](const char* file, const char* shows, const auto& read) {
    const fs::path path = folder / file;
    if (fs::exists(path)) {
      ++found;
      read(path);
    } else {
      run.missing.push_back(fmt::format("no {}: {} omitted", file, shows));
    }
  };
  part("run.json", "counts and versions", [&](const fs::path& path) {
    const Json json = load_json(path);
    if (!json.is_object()) Field(json, path.string()).wrong("an object");
    flatten(json, "", &run.facts);
    if (json.contains("name") && json["name"].is_string()) run.name = json["name"].get<std::string>();
  });
  part("config.toml", "the configuration", [&](const fs::path& path) {
    run.config_text = read_file(path);
    run.settings = flatten_toml(run.config_text, path.string());
  });
  part("log.jsonl", "learning curves", [&](const fs::path& path) { read_log(path, &run); });
  part("eval.json", "results of lazy eval", [&](const fs::path& path) { read_eval(path, &run); });
  if (const fs::path path = folder / "lengths.json"; fs::exists(path)) read_lengths(path, &run);
  part("sinks.json", "sink measures and attention maps",
       [&](const fs::path& path) { run.sinks = parse_sinks(load_json(path), path.string()); });
  part("samples.json", "text samples", [&](const fs::path& path) {
    const Json json = load_json(path);
    const Field samples(json, path.string(), "samples");
    for (size_t i = 0; i < samples.size(); ++i) {
      run.samples.push_back(
          {to_valid_utf8(samples.at(i)["prompt"].string()), to_valid_utf8(samples.at(i)["text"].string())});
    }
  });
  if (found == 0) {
    fail("report",
         "{}: expected the folder of a run (config.toml, run.json, log.jsonl, ...), found none of these files",
         folder.string());
  }
  const auto last_finite = [](const Curve2d& curve) -> std::optional<double> {
    for (auto at = curve.rbegin(); at != curve.rend(); ++at) {
      if (std::isfinite(at->second)) return at->second;
    }
    return std::nullopt;
  };
  if (!run.heldout_loss) {
    run.heldout_loss = last_finite(run.validation_loss);
    run.heldout_source = "last validation";
    if (!run.bits_per_byte) run.bits_per_byte = last_finite(run.validation_bits);
  }
  if (!run.perplexity && run.heldout_loss) run.perplexity = std::exp(*run.heldout_loss);
  run.kind = kind_of(run);
  find_status(&run);
  return run;
}

}  // namespace lazy::report
