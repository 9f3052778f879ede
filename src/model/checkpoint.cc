#include "model/checkpoint.h"

#include <ATen/ATen.h>

#include <fmt/ranges.h>

#include "core/error.h"
#include "core/text.h"
#include "model/families/families.h"
#include "model/mxfp4.h"
#include "model/parameters.h"

namespace lazy {
namespace fs = std::filesystem;
namespace {

constexpr char kCheckpoint[] = "checkpoint";

// Converts a tensor name to the naming of FLA (flash-linear-attention), without the prefix `model.` or its equivalents.
std::string canonical(std::string name) {
  for (const char* prefix : {"transformer.", "model.", "backbone."}) {
    if (name.rfind(prefix, 0) == 0) name.erase(0, std::string(prefix).size());
  }
  static const std::vector<std::pair<std::string, std::string>> words = {{"embed_tokens", "embeddings"},
                                                                         {"embedding", "embeddings"},
                                                                         {"input_layernorm", "attn_norm"},
                                                                         {"post_attention_layernorm", "mlp_norm"},
                                                                         {"self_attn", "attn"}};
  std::string out;
  for (std::string word : split(name, '.')) {
    for (const auto& [llama, fla] : words) {
      if (word == llama) word = fla;
    }
    out += (out.empty() ? "" : ".") + word;
  }
  return out;
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

bool ignored(const std::string& name, const Family* family) {
  for (const char* buffer : family ? family->ignored : std::vector<const char*>()) {
    if (ends_with(name, buffer)) return true;
  }
  return ends_with(name, "inv_freq") || ends_with(name, ".mask") || ends_with(name, ".masked_bias");
}

std::string show(const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

// Collects the mismatches of one kind, such as all missing tensors, for one error message of limited length.
class Complaints {
 public:
  explicit Complaints(const char* title) : title_(title) {}
  void add(std::string text) { items_.push_back(std::move(text)); }
  std::string text() const {
    if (items_.empty()) return "";
    const size_t shown = std::min<size_t>(items_.size(), 12);
    std::string out = fmt::format("{} {}: {}", items_.size(), title_,
                                  fmt::join(items_.begin(), items_.begin() + static_cast<long>(shown), ", "));
    if (shown < items_.size()) out += fmt::format(" and {} more", items_.size() - shown);
    return out;
  }

 private:
  const char* title_;
  std::vector<std::string> items_;
};

bool is_float(const std::string& dtype) {
  return dtype == "F32" || dtype == "BF16" || dtype == "F16" || dtype == "F64";
}

void check_finite(const at::Tensor& tensor, const std::string& file, const std::string& name) {
  // A NaN or an infinity makes the sum non-finite, so a finite sum proves that all values are finite. Values are
  // counted only if the sum is not finite. PyTorch converts the whole input to float64 before it computes a float64
  // sum, so a large tensor is summed in parts.
  constexpr int64_t kPart = 1 << 20;
  double sum = 0;
  for (const at::Tensor& part : tensor.flatten().split(kPart)) sum += part.sum(at::kDouble).item<double>();
  if (std::isfinite(sum)) return;
  const auto bad = at::isfinite(tensor).logical_not().sum().item<int64_t>();
  if (bad > 0) fail(kCheckpoint, "{}: tensor '{}': {} of {} values are not finite", file, name, bad, tensor.numel());
}

}  // namespace

std::unique_ptr<WeightsFile> open_weights(const fs::path& directory) {
  for (const char* name : {"model.safetensors", "model.safetensors.index.json"}) {
    if (fs::exists(directory / name)) return without_mxfp4(std::make_unique<SafetensorsFile>(directory / name));
  }
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    if (!fs::exists(directory / name)) continue;
    fail(kCheckpoint,
         "{}: expected model.safetensors, found {}: convert it with `lazy convert FOLDER --from-torch --output OUT`",
         directory.string(), name);
  }
  fail(kCheckpoint, "{}: expected model.safetensors or model.safetensors.index.json, found neither",
       directory.string());
}

bool is_ignored_weight(const std::string& name, const ModelConfig& config) { return ignored(name, family_of(config)); }

bool has_weight(const WeightsFile& file, const std::string& name) {
  const std::string wanted = canonical(name);
  for (const std::string& have : file.names()) {
    if (canonical(have) == wanted) return true;
  }
  return false;
}

void tie_without_head(const WeightsFile& file, ModelConfig& config) {
  const bool of_transformers = config.all_attention() && config.family != ModelFamily::transformer_xl &&
                               config.architecture() != "LazyForCausalLM";
  if (!of_transformers && !has_weight(file, head_name(config))) config.tie_embeddings = true;
}

std::map<std::string, std::string> match_weights(const WeightsFile& file, const fs::path& directory,
                                                 const ModelConfig& config) {
  const Family* family = family_of(config);
  std::map<std::string, std::string> unmatched;  // key: canonical name; value: name in the file
  Complaints missing("missing"), unexpected("unexpected"), shapes("of the wrong shape"), dtypes("of the wrong type");
  for (const std::string& name : file.names()) {
    if (ignored(name, family)) continue;
    if (!unmatched.emplace(canonical(name), name).second) unexpected.add(name + " (duplicates another tensor)");
  }
  std::map<std::string, std::string> matched;
  for (const StoredTensor& want : stored_tensors(config)) {
    bool found = false;
    std::vector<std::string> spellings = {want.name};
    spellings.insert(spellings.end(), want.also.begin(), want.also.end());
    for (const std::string& name : spellings) {
      const auto place = unmatched.find(canonical(name));
      if (place == unmatched.end()) continue;
      const std::string& stored = place->second;
      const WeightInfo entry = file.info(stored);
      if (entry.shape != want.shape) {
        shapes.add(fmt::format("{} expected {}, found {}", stored, show(want.shape), show(entry.shape)));
      } else if (!is_float(entry.dtype)) {
        dtypes.add(fmt::format("{} expected F32, BF16, F16 or F64, found {}", stored, entry.dtype));
      }
      matched[found ? name : want.name] = stored;
      found = true;
      unmatched.erase(place);
    }
    if (!found) missing.add(want.name);
  }
  for (const auto& [name, stored] : unmatched) unexpected.add(stored);
  std::string text;
  for (const Complaints* kind : {&missing, &unexpected, &shapes, &dtypes}) {
    if (!kind->text().empty()) text += (text.empty() ? "" : "; ") + kind->text();
  }
  if (!text.empty()) fail(kCheckpoint, "{}: tensors do not fit config.json: {}", directory.string(), text);
  return matched;
}

std::vector<at::Tensor> unpacked(const StoredTensor& stored, const at::Tensor& tensor) {
  switch (stored.interleaving) {
    case Interleaving::plain:
      return {tensor};
    case Interleaving::by_head: {
      const auto count = static_cast<int64_t>(stored.parts.size());
      const at::Tensor by_head = tensor.unflatten(0, {stored.heads, -1});
      std::vector<at::Tensor> out;
      for (const at::Tensor& part :
           stored.rows.empty() ? by_head.chunk(count, 1) : by_head.split_with_sizes(stored.rows, 1))
        out.push_back(part.flatten(0, 1));
      return out;
    }
    case Interleaving::transposed:
      return (tensor.dim() == 2 ? tensor.t() : tensor).chunk(static_cast<int64_t>(stored.parts.size()));
    case Interleaving::stacked:
      return tensor.chunk(static_cast<int64_t>(stored.parts.size()));
    case Interleaving::shared:
      return std::vector<at::Tensor>(stored.parts.size(), tensor);
  }
  return {};
}

at::Tensor packed(const StoredTensor& stored, const std::vector<at::Tensor>& parts) {
  switch (stored.interleaving) {
    case Interleaving::plain:
      return parts[0];
    case Interleaving::by_head: {
      std::vector<at::Tensor> heads;
      for (const at::Tensor& part : parts) heads.push_back(part.unflatten(0, {stored.heads, -1}));
      return at::cat(heads, 1).flatten(0, 1);
    }
    case Interleaving::transposed:
      return parts[0].dim() == 2 ? at::cat(parts).t() : at::cat(parts);
    case Interleaving::stacked:
      return at::cat(parts);
    case Interleaving::shared:
      return parts[0];
  }
  return {};
}

at::Tensor checked_tensor(const WeightsFile& file, const fs::path& directory, const StoredTensor& stored,
                          const std::map<std::string, std::string>& matched) {
  const std::string& name = matched.at(stored.name);
  const at::Tensor tensor = file.tensor(name);
  check_finite(tensor, file.where(name), name);
  for (const std::string& other : stored.also) {
    const auto again = matched.find(other);
    if (again == matched.end() || at::equal(file.tensor(again->second).to(tensor.options()), tensor)) continue;
    fail(kCheckpoint, "{}: {}: config.json ties this tensor to {}, but the values differ", directory.string(),
         again->second, name);
  }
  return tensor;
}

void load_weights(const WeightsFile& file, const fs::path& directory, const ModelConfig& config,
                  const NamedTensors& targets) {
  const auto stored_names = match_weights(file, directory, config);
  const std::map<std::string, at::Tensor> by_name(targets.begin(), targets.end());
  const at::NoGradGuard guard;
  for (const StoredTensor& stored : stored_tensors(config)) {
    const std::vector<at::Tensor> parts = unpacked(stored, checked_tensor(file, directory, stored, stored_names));
    for (size_t i = 0; i < parts.size(); ++i) by_name.at(stored.parts[i]).copy_(parts[i]);
  }
}

NamedTensors packed(const ModelConfig& config, const NamedTensors& tensors) {
  if (!family_of(config) && !config.gates_in_queries()) return tensors;
  const std::map<std::string, at::Tensor> by_name(tensors.begin(), tensors.end());
  NamedTensors out;
  for (const StoredTensor& stored : stored_tensors(config)) {
    std::vector<at::Tensor> parts;
    for (const std::string& part : stored.parts) parts.push_back(by_name.at(part));
    out.emplace_back(stored.name, packed(stored, parts));
  }
  return out;
}

}  // namespace lazy
