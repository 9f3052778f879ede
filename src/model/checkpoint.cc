#include "model/checkpoint.h"

#include <ATen/ATen.h>

#include <fmt/ranges.h>

#include "core/error.h"
#include "core/text.h"

namespace lazy {
namespace fs = std::filesystem;
namespace {

constexpr char kOperation[] = "checkpoint";

// One spelling for all: FLA's words, no prefix.
std::string canonical(std::string name) {
  for (const char* prefix : {"transformer.", "model."}) {
    if (name.rfind(prefix, 0) == 0) name.erase(0, std::string(prefix).size());
  }
  static const std::vector<std::pair<std::string, std::string>> words = {{"embed_tokens", "embeddings"},
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

bool ignored(const std::string& name) {
  return ends_with(name, "inv_freq") || ends_with(name, ".mask") || ends_with(name, ".masked_bias");
}

std::string show(at::IntArrayRef shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

// The differences of one kind, in one line however many there are.
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
  // NaN and infinity survive a sum, so one sum clears a sound tensor; only a suspicious one is counted.
  if (std::isfinite(tensor.sum(at::kDouble).item<double>())) return;
  const auto bad = at::isfinite(tensor).logical_not().sum().item<int64_t>();
  if (bad > 0) fail(kOperation, "{}: tensor '{}': {} of {} values are not finite", file, name, bad, tensor.numel());
}

}  // namespace

CheckpointNames CheckpointNames::llama() {
  return {"model.embed_tokens.weight",
          "model.norm.weight",
          "lm_head.weight",
          "model.layers.",
          "input_layernorm.weight",
          "post_attention_layernorm.weight",
          "self_attn."};
}

CheckpointNames CheckpointNames::fla() {
  return {"model.embeddings.weight", "model.norm.weight", "lm_head.weight", "model.layers.",
          "attn_norm.weight",        "mlp_norm.weight",   "attn."};
}

SafetensorsFile open_weights(const fs::path& directory) {
  for (const char* name : {"model.safetensors", "model.safetensors.index.json"}) {
    if (fs::exists(directory / name)) return SafetensorsFile(directory / name);
  }
  const char* hint = fs::exists(directory / "pytorch_model.bin") ? "; pytorch_model.bin is not read, convert it" : "";
  fail(kOperation, "{}: expected model.safetensors or model.safetensors.index.json, found neither{}",
       directory.string(), hint);
}

bool has_weight(const SafetensorsFile& file, const std::string& name) {
  const std::string wanted = canonical(name);
  for (const std::string& have : file.names()) {
    if (canonical(have) == wanted) return true;
  }
  return false;
}

void load_weights(const SafetensorsFile& file, const fs::path& directory, const NamedTensors& targets,
                  const std::string& tied_head, const std::string& tied_to) {
  std::map<std::string, std::string> found;  // canonical -> the file's name
  Complaints missing("missing"), unexpected("unexpected"), shapes("of the wrong shape"), dtypes("of the wrong type");
  for (const std::string& name : file.names()) {
    if (ignored(name)) continue;
    if (!found.emplace(canonical(name), name).second) unexpected.add(name + " (a second spelling of another)");
  }
  const auto head = tied_head.empty() ? found.end() : found.find(canonical(tied_head));
  const std::string stored_head = head == found.end() ? "" : head->second;
  if (head != found.end()) found.erase(head);
  std::vector<std::pair<std::string, at::Tensor>> plan;
  for (const auto& [name, target] : targets) {
    const auto place = found.find(canonical(name));
    if (place == found.end()) {
      missing.add(name);
      continue;
    }
    const SafetensorsEntry& entry = file.entry(place->second);
    if (at::IntArrayRef(entry.shape) != target.sizes()) {
      shapes.add(fmt::format("{} expected {}, found {}", place->second, show(target.sizes()), show(entry.shape)));
    } else if (!is_float(entry.dtype)) {
      dtypes.add(fmt::format("{} expected F32, BF16, F16 or F64, found {}", place->second, entry.dtype));
    } else {
      plan.emplace_back(place->second, target);
    }
    found.erase(place);
  }
  for (const auto& [name, stored] : found) unexpected.add(stored);
  std::string text;
  for (const Complaints* kind : {&missing, &unexpected, &shapes, &dtypes}) {
    if (!kind->text().empty()) text += (text.empty() ? "" : "; ") + kind->text();
  }
  if (!text.empty()) fail(kOperation, "{}: tensors do not fit config.json: {}", directory.string(), text);
  const at::NoGradGuard guard;
  for (auto& [name, target] : plan) {
    const at::Tensor stored = file.tensor(name);
    check_finite(stored, file.where(name), name);
    target.copy_(stored);
  }
  if (stored_head.empty()) return;
  for (const auto& [name, target] : targets) {
    if (name != tied_to) continue;
    const at::Tensor stored = file.tensor(stored_head).to(target.scalar_type()).to(target.device());
    if (stored.sizes() != target.sizes() || !at::equal(stored, target)) {
      fail(kOperation, "{}: {}: config.json ties it to {}, but it differs", directory.string(), stored_head, name);
    }
  }
}

}  // namespace lazy
