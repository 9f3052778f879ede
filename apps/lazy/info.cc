// `lazy info`: what this build can do, or the shapes and parameter counts of a configuration or a model folder.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/cpu/Utils.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "command.h"

#include "core/config.h"
#include "core/error.h"
#include "core/text.h"
#include "model/config.h"
#include "model/parameters.h"
#include "ops/load_cuda.h"
#include "train/config.h"

namespace lazy {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::string> cpu_features() {
  std::vector<std::string> out;
  for (const auto& [name, value] : at::cpu::get_cpu_capabilities()) {
    if (value.isBool() && value.toBool()) out.push_back(name);
  }
  std::sort(out.begin(), out.end());
  return out;
}

kernels::Problem usual_problem(kernels::Normalizer normalizer, kernels::DType dtype, int64_t head_dim) {
  return {.q_length = 128,
          .k_length = 128,
          .head_dim = head_dim,
          .value_dim = head_dim,
          .dtype = dtype,
          .normalizer = normalizer};
}

// {normalizer: [types]} that the CPU kernels support.
Json cpu_support() {
  Json served = Json::object();
  for (const kernels::Normalizer normalizer : kernels::kAllNormalizers) {
    Json types = Json::array();
    for (const kernels::DType type : kernels::kKernelTypes) {
      if (kernels::unmet_condition(usual_problem(normalizer, type, 64)).empty()) types.push_back(kernels::name(type));
    }
    served[kernels::name(normalizer)] = types;
  }
  return served;
}

// {normalizer: {type: {head size: kernel}}} on this GPU, or the reason for which CUDA is unavailable.
Json cuda_support() {
  try {
    ops::load_cuda();
  } catch (const std::exception& error) {
    return error.what();
  }
  Json served = Json::object();
  for (const kernels::Normalizer normalizer : kernels::kAllNormalizers) {
    for (const kernels::DType type : kernels::kKernelTypes) {
      for (const int64_t size : kernels::kTensorCoreHeadSizes) {
        served[kernels::name(normalizer)][kernels::name(type)][std::to_string(size)] =
            ops::cuda_choice()(usual_problem(normalizer, type, size));
      }
    }
  }
  return served;
}

// "hopper 64, 128; portable 96, 256"; just "plain" where one kernel serves all sizes.
std::string by_kernel(const Json& sizes) {
  std::map<std::string, std::vector<std::string>> groups;
  for (const auto& [size, kernel] : sizes.items()) groups[kernel.get<std::string>()].push_back(size);
  if (groups.size() == 1) return groups.begin()->first;
  std::vector<std::string> parts;
  for (const auto& [kernel, list] : groups) parts.push_back(fmt::format("{} {}", kernel, fmt::join(list, ", ")));
  return fmt::format("{}", fmt::join(parts, "; "));
}

Json build_info() {
  Json cuda = cuda_support(), out;  // first: it initializes CUDA
  out["version"] = LAZY_VERSION;
  out["compiler"] = __VERSION__;
  out["torch"] = TORCH_VERSION;
  out["devices"] = {"cpu"};
  if (at::hasCUDA()) {
    for (int64_t i = 0; i < at::detail::getCUDAHooks().deviceCount(); ++i)
      out["devices"].push_back(fmt::format("cuda:{}", i));
  }
  out["threads"] = at::get_num_threads();
  out["cpu_features"] = cpu_features();
  out["blas"] = at::hasMKL() ? "mkl" : at::hasLAPACK() ? "lapack" : "none";
  out["attention_kernels"] = {{"cpu", cpu_support()}, {"cuda", std::move(cuda)}};
  return out;
}

void print_build(const Json& info) {
  fmt::print("lazy {} (torch {}, compiler {})\n", info["version"].get<std::string>(), info["torch"].get<std::string>(),
             info["compiler"].get<std::string>());
  fmt::print("devices       {}\n", fmt::join(info["devices"].get<std::vector<std::string>>(), ", "));
  fmt::print("threads       {}\n", info["threads"].get<int>());
  fmt::print("cpu features  {}\n", fmt::join(info["cpu_features"].get<std::vector<std::string>>(), " "));
  fmt::print("blas          {}\n", info["blas"].get<std::string>());
  fmt::print("attention kernels\n");
  for (const auto& [device, served] : info["attention_kernels"].items()) {
    if (served.is_string()) {
      fmt::print("  {:5} {}\n", device, served.get<std::string>());
      continue;
    }
    for (const auto& [normalizer, types] : served.items()) {
      if (types.is_array()) {
        fmt::print("  {:5} {:13} {}\n", device, normalizer, fmt::join(types.get<std::vector<std::string>>(), ", "));
        continue;
      }
      for (const auto& [type, sizes] : types.items())
        fmt::print("  {:5} {:13} {:9} {}\n", device, normalizer, type, by_kernel(sizes));
    }
  }
}

std::string millions(int64_t n) { return fmt::format("{:.1f} M", static_cast<double>(n) / 1e6); }

Json model_info(const ModelConfig& model) {
  const ParameterCount count = count_parameters(model);
  Json out;
  out["kind"] = model.kind();
  out["config"] = model.to_json();
  out["parameters"] = {
      {"total", count.total}, {"tied", count.tied}, {"untied", count.untied}, {"embedding", count.embedding}};
  const int64_t kept = model.num_kv_cache_layers() * model.attention.num_kv_heads *
                       model.attention.head_dim;  // keys, and as many values
  out["kv_cache_bytes_per_token"] = {{"fp32", 8 * kept}, {"bf16", 4 * kept}};
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

void print_attention(const ModelConfig& m) {
  std::string positions = m.positions.kind == PositionKind::rope && !m.rotates() ? "none" : name(m.positions.kind);
  if (m.rotates()) {
    positions = fmt::format("RoPE base {:g}", m.positions.rope_base);
    if (m.positions.partial_rotary_factor != 1)
      positions += fmt::format(" on {} of {} dimensions", m.rotary_dim(), m.attention.head_dim);
    if (m.positions.rope_interleaved) positions += ", neighbours paired";
    if (m.positions.rope_scaling.type != "none")
      positions += fmt::format(", {} by {:g}", m.positions.rope_scaling.type, m.positions.rope_scaling.factor);
  }
  fmt::print("positions     {}, training length {}\n", positions, m.max_length);
  fmt::print("normalizer    {}{}{}\n", name(m.attention.normalizer),
             m.has_offset() ? fmt::format(", offset {} from {:g}{}", name(m.attention.offset), m.attention.offset_init,
                                          m.attention.offset_trainable ? "" : ", fixed")
                            : "",
             m.attention.window > 0 ? fmt::format(", window {}", m.attention.window) : "");
  if (m.attention.distance_bias_window > 0)
    fmt::print("distance bias {} distances a head\n", m.attention.distance_bias_window);
}

void print_model(const ModelConfig& m) {
  const ParameterCount count = count_parameters(m);
  fmt::print("{}: {} layers, width {}, {}, {}\n", m.kind(), m.num_layers, m.hidden_size, heads(m),
             m.mlp.enabled ? fmt::format("MLP {}", m.intermediate()) : "no MLP");
  fmt::print("vocabulary    {}, {}\n", m.vocab_size, m.tie_embeddings ? "tied" : "untied");
  if (m.attends()) print_attention(m);
  fmt::print("parameters    {} ({} tied, {} untied; embedding {})\n\n", millions(count.total), millions(count.tied),
             millions(count.untied), millions(count.embedding));
  // Layers with the same mixer have the same shapes: print the first one and their number.
  const CheckpointNames names(m);
  std::map<MixerType, std::pair<int64_t, int64_t>> same_mixer;  // mixer -> its first layer, how many there are
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

ModelConfig read_model(const std::string& path, const std::vector<std::string>& overrides) {
  if (std::filesystem::is_directory(path)) {
    if (!overrides.empty()) fail("info", "--set changes a configuration file, and {} is a folder", path);
    return ModelConfig::from_directory(path);
  }
  Config config = Config::load(path, overrides);
  // Refuses what `lazy train` would refuse, but keys that a base configuration leaves to others may be missing.
  auto complete = overrides;
  if (!config.section("data").has("corpus")) complete.push_back("data.corpus=unset");
  if (!config.section("training").has("steps")) complete.push_back("training.steps=1000000000");
  train::TrainConfig::load(path, complete);
  return ModelConfig::from_toml(config);
}

struct InfoOptions {
  std::string path;
  std::vector<std::string> overrides;
  bool json = false;
};

void run(const InfoOptions& options) {
  if (options.path.empty()) {
    const Json info = build_info();
    options.json ? fmt::print("{}\n", info.dump(2)) : print_build(info);
    return;
  }
  const ModelConfig model = read_model(options.path, options.overrides);
  options.json ? fmt::print("{}\n", model_info(model).dump(2)) : print_model(model);
}

}  // namespace

LAZY_COMMAND(info, "Show this build, or the shapes and parameter counts of a model", [](cli::Command command) {
  auto o = std::make_shared<InfoOptions>();
  command.add_option("path", o->path, "A configuration (.toml) or a model folder; without it: build, devices, kernels");
  command.add_option("--set", o->overrides, "section.key=value: change a configuration's value").repeatable();
  command.add_flag("--json", o->json, "Print JSON");
  command.footer(
      "Examples:\n"
      "  lazy info\n"
      "  lazy info configs/models/lazy-340m.toml\n"
      "  lazy info configs/models/lazy-340m.toml --set model.tie_word_embeddings=true --json\n"
      "  lazy info run/model");
  command.callback([o] { run(*o); });
});

}  // namespace lazy
