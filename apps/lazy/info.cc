// `lazy info`: what this build can do, or the shapes and parameter counts of a configuration or a model folder.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/cpu/Utils.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "command.h"

#include "core/config.h"
#include "core/error.h"
#include "core/text.h"
#include "lazy/attention.h"
#include "model/config.h"
#include "model/parameter_shapes.h"
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

// Which normalizers, precisions and devices the fast kernels serve, asked of the kernels themselves.
Json kernel_support() {
  using kernels::DType, kernels::Normalizer, kernels::Device;
  Json out = Json::object();
  for (const Device device : {Device::cpu, Device::cuda}) {
    Json served = Json::object();
    std::set<std::string> reasons;
    for (const Normalizer normalizer : {Normalizer::softmax, Normalizer::elastic, Normalizer::sparsemax,
                                        Normalizer::entmax15, Normalizer::sigmoid, Normalizer::softmax_sink}) {
      Json dtypes = Json::array();
      std::string reason;
      for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        const kernels::Problem problem{.q_length = 128,
                                       .k_length = 128,
                                       .head_dim = 64,
                                       .value_dim = 64,
                                       .dtype = dtype,
                                       .normalizer = normalizer};
        reason = kernels::unmet_condition(problem, device);
        if (reason.empty()) dtypes.push_back(kernels::name(dtype));
      }
      served[kernels::name(normalizer)] = dtypes.empty() ? Json(reason) : dtypes;
      reasons.insert(dtypes.empty() ? reason : "");
    }
    // One reason for all of them is said once.
    out[device == Device::cpu ? "cpu" : "cuda"] =
        reasons.size() == 1 && !reasons.begin()->empty() ? Json(*reasons.begin()) : served;
  }
  return out;
}

Json build_info() {
  Json out;
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
  out["attention_kernels"] = kernel_support();
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
    for (const auto& [normalizer, dtypes] : served.items()) {
      const std::string what = dtypes.is_string()
                                   ? dtypes.get<std::string>()
                                   : fmt::format("{}", fmt::join(dtypes.get<std::vector<std::string>>(), ", "));
      fmt::print("  {:5} {:13} {}\n", device, normalizer, what);
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
  out["kv_cache_bytes_per_token"] = {{"fp32", 8 * model.num_layers * model.num_kv_heads * model.head_dim},
                                     {"bf16", 4 * model.num_layers * model.num_kv_heads * model.head_dim}};
  out["tensors"] = Json::array();
  for (const ParameterShape& p : parameter_shapes(model)) {
    out["tensors"].push_back({{"name", p.name}, {"shape", p.shape}, {"count", p.count()}, {"trained", p.trained}});
  }
  return out;
}

void print_model(const ModelConfig& m) {
  const ParameterCount count = count_parameters(m);
  fmt::print("{}: {} layers, width {}, {} heads of {}{}, MLP {}\n", m.kind(), m.num_layers, m.hidden_size, m.num_heads,
             m.head_dim, m.num_kv_heads == m.num_heads ? "" : fmt::format(" ({} key/value heads)", m.num_kv_heads),
             m.intermediate());
  fmt::print("vocabulary    {}, {}\n", m.vocab_size, m.tie_embeddings ? "tied" : "untied");
  fmt::print("positions     RoPE base {:g}, training length {}\n", m.rope_base, m.max_length);
  fmt::print("normalizer    {}{}{}\n", m.normalizer,
             m.has_offset()
                 ? fmt::format(", offset {} from {:g}{}", m.offset, m.offset_init, m.offset_trainable ? "" : ", fixed")
                 : "",
             m.window > 0 ? fmt::format(", window {}", m.window) : "");
  if (m.distance_bias_window > 0) fmt::print("distance bias {} distances a head\n", m.distance_bias_window);
  fmt::print("parameters    {} ({} tied, {} untied; embedding {})\n\n", millions(count.total), millions(count.tied),
             millions(count.untied), millions(count.embedding));
  const std::string first = "model.layers.0.";
  for (const ParameterShape& p : parameter_shapes(m)) {
    const bool layer = p.name.rfind("model.layers.", 0) == 0;
    if (layer && p.name.rfind(first, 0) != 0) continue;  // all layers are alike
    const std::string name = layer ? "model.layers.*." + p.name.substr(first.size()) : p.name;
    fmt::print("  {:48} {:>16} {:>12}{}\n", name, fmt::format("[{}]", fmt::join(p.shape, ", ")), p.count(),
               layer ? fmt::format(" x {}", m.num_layers) : "");
  }
}

ModelConfig read_model(const std::string& path, const std::vector<std::string>& overrides) {
  if (std::filesystem::is_directory(path)) {
    if (!overrides.empty()) fail("info", "--set changes a configuration file, and {} is a folder", path);
    return ModelConfig::from_directory(path);
  }
  Config config = Config::load(path, overrides);
  // Whatever `lazy train` would refuse is refused here; a file that others extend may leave out what they set.
  auto complete = overrides;
  if (!config.section("data").has("corpus")) complete.push_back("data.corpus=\"unset\"");
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

LAZY_COMMAND(info, "Show this build, or the shapes and parameter counts of a model", [](CLI::App& command) {
  auto o = std::make_shared<InfoOptions>();
  command.add_option("path", o->path, "A configuration (.toml) or a model folder; without it: build, devices, kernels");
  command.add_option("--set", o->overrides, "section.key=value: change a configuration's value")
      ->allow_extra_args(false);
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
