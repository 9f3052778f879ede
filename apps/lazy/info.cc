// `lazy info`: shows the capabilities of this build, or the shapes and parameter counts of a configuration or model
// folder.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "build_info.h"
#include "command.h"

#include "core/config.h"
#include "core/config_files.h"
#include "core/counted.h"
#include "core/error.h"
#include "core/log.h"
#include "core/statistics.h"
#include "core/text.h"
#include "model/config.h"
#include "model/parameters.h"
#include "model_path.h"
#include "sinks/attention_maps.h"
#include "train/config.h"

namespace lazy {
namespace {

using Json = nlohmann::ordered_json;

std::string millions(int64_t n) { return fmt::format("{:.1f} M", static_cast<double>(n) / 1e6); }

struct InfoModel {
  ModelConfig config;
  // The offsets tau of all layers and heads. Empty for a configuration and for a model without weights or without tau.
  std::vector<double> stored_taus;
};

// Returns the offsets tau in the weights of a model folder. If the weights cannot be read, it logs a warning, because
// the other information needs only config.json.
std::vector<double> stored_taus(const std::string& folder, const ModelConfig& config) {
  std::vector<double> taus;
  if (!config.has_offset()) return taus;
  try {
    for (const auto& layer : sinks::learned_parameters(folder).tau) taus.insert(taus.end(), layer.begin(), layer.end());
  } catch (const Error& error) {
    log::warn("info: the stored values of tau are not shown: {}", std::string(error.what()));
  }
  return taus;
}

Json model_info(const InfoModel& described) {
  const ModelConfig& model = described.config;
  const ParameterCount count = count_parameters(model);
  Json out;
  out["kind"] = model.kind();
  out["config"] = model.to_json();
  out["parameters"] = {
      {"total", count.total}, {"tied", count.tied}, {"untied", count.untied}, {"embedding", count.embedding}};
  const int64_t kept = model.num_kv_cache_layers() * model.attention.num_kv_heads *
                       model.attention.head_dim;  // elements of K per token; V has the same number
  out["kv_cache_bytes_per_token"] = {{"fp32", 8 * kept}, {"bf16", 4 * kept}};
  if (const std::vector<double>& taus = described.stored_taus; !taus.empty()) {
    const auto [lowest, highest] = std::ranges::minmax(taus);
    out["tau"] = {{"mean", mean_of(taus)}, {"min", lowest}, {"max", highest}};
  }
  out["tensors"] = Json::array();
  for (const ParameterShape& p : parameter_shapes(model)) {
    out["tensors"].push_back({{"name", p.name}, {"shape", p.shape}, {"count", p.count()}, {"trained", p.trained}});
  }
  return out;
}

std::string heads(const ModelConfig& m) {
  std::string mixer =
      m.all_attention() ? ""
                        : fmt::format("{} heads of {} (values {})", m.mixer.heads, m.mixer.key_dim, m.mixer.value_dim);
  if (!m.attends()) return mixer;
  const std::string groups = m.attention.num_kv_heads == m.attention.num_heads
                                 ? ""
                                 : fmt::format(" ({} key/value heads)", m.attention.num_kv_heads);
  const std::string attention = fmt::format("{} heads of {}{}", m.attention.num_heads, m.attention.head_dim, groups);
  return mixer.empty() ? attention : mixer + ", attention's " + attention;
}

// Describes the properties in which attention layers may differ, such as "window 512, RoPE base 10000".
std::string layer_kind(const ModelConfig& m, int64_t layer) {
  const int64_t window = m.window_of(layer);
  std::string kind = window > 0 ? fmt::format("window {}", window) : "full attention";
  if (m.rotates()) {
    const double base = m.rope_base_of(layer);
    kind += base > 0 ? fmt::format(", RoPE base {:g}", base) : ", no positions";
  }
  return kind;
}

// Groups layers by kind, ordered by the first layer of each kind.
std::vector<std::pair<std::string, std::vector<int64_t>>> kinds_of_layers(const ModelConfig& m) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> kinds;
  for (int64_t layer = 0; layer < m.num_layers; ++layer) {
    if (m.mixer_of(layer) != MixerType::attention) continue;
    const std::string kind = layer_kind(m, layer);
    const auto found = std::ranges::find(kinds, kind, &std::pair<std::string, std::vector<int64_t>>::first);
    (found == kinds.end() ? kinds.emplace_back(kind, std::vector<int64_t>()) : *found).second.push_back(layer);
  }
  return kinds;
}

// Describes the offsets tau: the stored values of a model folder, otherwise only the initial value.
std::string offset_text(const InfoModel& described) {
  const auto& attention = described.config.attention;
  const std::string fixed = attention.offset_trainable ? "" : ", fixed";
  const std::vector<double>& taus = described.stored_taus;
  if (taus.empty()) return fmt::format(", offset {} from {:g}{}", name(attention.offset), attention.offset_init, fixed);
  const auto [lowest, highest] = std::ranges::minmax(taus);
  return fmt::format(", offset {}{}\ntau           {:.4g} to {:.4g}, mean {:.4g}; initial value {:g}",
                     name(attention.offset), fixed, lowest, highest, mean_of(taus), attention.offset_init);
}

void print_attention(const InfoModel& described) {
  const ModelConfig& m = described.config;
  const auto kinds = kinds_of_layers(m);
  const bool mixed = kinds.size() > 1;
  std::string positions = m.positions.kind == PositionKind::rope && !m.rotates() ? "none" : name(m.positions.kind);
  if (m.rotates()) {
    positions = mixed ? "RoPE" : fmt::format("RoPE base {:g}", m.positions.rope_base);
    if (m.positions.partial_rotary_factor != 1)
      positions += fmt::format(" on {} of {} dimensions", m.rotary_dim(), m.attention.head_dim);
    if (m.positions.rope_interleaved) positions += ", adjacent dimensions paired";
    if (m.positions.rope_scaling.type != "none")
      positions += fmt::format(", {} by {:g}", m.positions.rope_scaling.type, m.positions.rope_scaling.factor);
  }
  fmt::print("positions     {}, training length {}\n", positions, m.max_length);
  fmt::print("normalizer    {}{}{}\n", name(m.attention.normalizer),
             m.attention.window > 0 && !mixed ? fmt::format(", window {}", m.attention.window) : "",
             m.has_offset() ? offset_text(described) : "");
  for (size_t n = 0; mixed && n < kinds.size(); ++n) {
    const auto& [kind, layers] = kinds[n];
    fmt::print("{}{}: {} ({})\n", n == 0 ? "attention     " : "              ",
               counted(static_cast<int64_t>(layers.size()), "layer"), kind, fmt::join(layers, ", "));
  }
  if (m.attention.distance_bias_window > 0)
    fmt::print("distance bias {} distances per head\n", m.attention.distance_bias_window);
}

void print_model(const InfoModel& described) {
  const ModelConfig& m = described.config;
  const ParameterCount count = count_parameters(m);
  fmt::print("{}: {}, width {}, {}, {}\n", m.kind(), counted(m.num_layers, "layer"), m.hidden_size, heads(m),
             m.mlp.enabled ? fmt::format("MLP {}", m.intermediate()) : "no MLP");
  fmt::print("vocabulary    {}, {}\n", m.vocab_size, m.tie_embeddings ? "tied embeddings" : "untied embeddings");
  if (m.attends()) print_attention(described);
  fmt::print("parameters    {} ({} with tied, {} with untied embeddings; embedding table {})\n\n",
             millions(count.total), millions(count.tied), millions(count.untied), millions(count.embedding));
  // Layers with the same mixer have the same shapes: print the first one and their number.
  const CheckpointNames names(m);
  std::map<MixerType, std::pair<int64_t, int64_t>> same_mixer;  // mixer -> its first layer and the number of its layers
  for (int64_t i = 0; i < m.num_layers; ++i) ++same_mixer.try_emplace(m.mixer_of(i), i, 0).first->second.second;
  for (const ParameterShape& p : parameter_shapes(m)) {
    std::string name = p.name, times;
    if (name.starts_with(names.layers)) {
      const int64_t layer = std::stoll(name.substr(names.layers.size()));
      const auto [first, count_of] = same_mixer.at(m.mixer_of(layer));
      if (layer != first) continue;
      name = names.layers + "*." + name.substr(names.layer(layer).size());
      times = fmt::format(" x {}", count_of);
    }
    fmt::print("  {:48} {:>16} {:>12}{}\n", name, fmt::format("[{}]", fmt::join(p.shape, ", ")), p.count(), times);
  }
}

InfoModel read_model(const std::string& argument, const std::vector<std::string>& overrides, bool download) {
  cli::refuse_gguf("info", argument);
  const std::string path = names_shipped_model(argument) ? resolve_config(argument) : argument;
  const bool folder = std::filesystem::is_directory(path);
  if (folder || (!std::filesystem::exists(path) && !is_config_file(config_parts(path)[0]))) {
    if (folder && !overrides.empty()) fail("info", "--set changes a configuration file, and {} is a folder", path);
    const std::string model_folder = cli::resolve_model_folder("info", path, download);
    const ModelConfig model = ModelConfig::from_directory(model_folder);
    return {model, stored_taus(model_folder, model)};
  }
  Config config = Config::load(path, overrides);
  // Reports the errors that `lazy train` would report, except for keys that a base configuration may leave unset.
  auto complete = overrides;
  if (!config.section("data").has("corpus")) complete.push_back("data.corpus=unset");
  if (!config.section("training").has("steps")) complete.push_back("training.steps=1000000000");
  train::TrainConfig::load(path, complete);
  return {ModelConfig::from_toml(config), {}};
}

struct InfoOptions {
  std::string path;
  std::vector<std::string> overrides;
  bool json = false, download = false;
};

void run(const InfoOptions& options) {
  if (options.path.empty()) {
    const Json info = cli::build_info();
    fmt::print("{}", options.json ? info.dump(2) + "\n" : cli::build_text(info));
    return;
  }
  const InfoModel model = read_model(options.path, options.overrides, options.download);
  options.json ? fmt::print("{}\n", model_info(model).dump(2)) : print_model(model);
}

}  // namespace

LAZY_COMMAND(info, "Show the build, or shapes and parameter counts of a model", [](CLI::App& command) {
  auto o = std::make_shared<InfoOptions>();
  command.add_option("path", o->path,
                     "A configuration (FILE.toml, FILE.toml+VARIANT, MODEL or MODEL+RECIPE), a model folder or a run "
                     "folder (default: show build, devices and kernels)");
  cli::add_download_option(command, o->download);
  cli::add_repeated_option(command, "--set", o->overrides, "section.key=value: change a configuration's value");
  command.add_flag("--json", o->json, "Print JSON");
  command.footer(
      "Examples:\n"
      "  lazy info\n"
      "  lazy info lazy-340m\n"
      "  lazy info lazy-340m+15b+rope10k --set model.tie_word_embeddings=true --json\n"
      "  lazy info runs/lazy");
  command.callback([o] { run(*o); });
});

}  // namespace lazy
