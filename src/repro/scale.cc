#include "repro/scale.h"

#include <algorithm>

#include "core/error.h"
#include "core/text.h"

namespace lazy::repro {
namespace {

// "gated_delta_net" -> "gated-deltanet".
std::string file_name(const std::string& kind) {
  if (kind == "delta_net") return "deltanet";
  if (kind == "gated_delta_net") return "gated-deltanet";
  std::string name = kind;
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

}  // namespace

int64_t Scale::context(Budget budget) const {
  if (name == "tiny") return 256;
  return name == "small" || budget == Budget::ablation ? 512 : 4096;
}

int64_t Scale::bias_window(Budget) const { return name == "tiny" ? 256 : 512; }

std::vector<std::string> Scale::files(const std::string& kind, Budget budget) const {
  if (name == "tiny") return {"repro-tiny.toml"};
  if (name == "small") return {"sink-55m.toml"};
  const std::string model = "models/" + file_name(kind);
  if (budget == Budget::large) return {model + "-760m.toml", "recipes/30b.toml"};
  return {model + "-340m.toml", budget == Budget::main ? "recipes/15b.toml" : "recipes/10b-512.toml"};
}

std::vector<std::string> Scale::attention_overrides() const {
  if (is_paper()) return {};
  return {name == "tiny" ? "model.num_heads=4" : "model.num_heads=8"};
}

const std::vector<Scale>& scales() {
  static const std::vector<Scale> all{
      {"tiny", "4 layers of 128, context 256, 0.5M tokens a model: minutes on two CPU cores", true, 192, 64, 32},
      {"small", "55M parameters, context 512, 200M tokens a model: minutes on one GPU", true, 1024, 128, 64},
      {"paper", "340M parameters (760M where the paper has them), 15B / 30B tokens, ablations 10B at context 512",
       false, 2048, 256, 128}};
  return all;
}

const Scale& find_scale(const std::string& name) {
  std::vector<std::string> names;
  for (const Scale& scale : scales()) {
    if (scale.name == name) return scale;
    names.push_back(scale.name);
  }
  const std::string near = nearest(name, names);
  fail("repro", "--scale: expected tiny, small or paper, found '{}'{}", name,
       near.empty() ? "" : "; did you mean " + near + "?");
}

}  // namespace lazy::repro
