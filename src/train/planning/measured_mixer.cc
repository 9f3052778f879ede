#include "train/planning/measured_mixer.h"

#include <ATen/ATen.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "model/language_model.h"

namespace lazy::train {
namespace {

constexpr int64_t kTokens = 256;  // of a text: as many as mixers go between two states that they keep
constexpr int64_t kVocabulary = 32;

// Bytes of CPU tensors that this thread has asked for and not given back, since it began to count.
struct LiveBytes final : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device device) override {
    if (!device.is_cpu()) return;
    live += size;
    peak = std::max(peak, live);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t live = 0, peak = 0;
};

struct Step {
  int64_t kept = 0, passing = 0;
};

// Of two and of three texts: one alone is sometimes not copied where several are.
std::array<Step, 2> steps(ModelConfig config, int64_t layers, int64_t length, bool bf16) {
  config.num_layers = layers;
  LanguageModel model(config, 1);
  model.set_compute_dtype(bf16 ? at::kBFloat16 : at::kFloat);
  const auto counter = std::make_shared<LiveBytes>();
  const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, counter);
  const auto step = [&](int64_t batch) {
    const at::Tensor ids = at::zeros({batch, length}, at::kLong);
    const int64_t before = counter->live;
    at::Tensor loss = model.loss(ids, ids);
    Step out{.kept = counter->live - before};
    counter->peak = counter->live;
    loss.backward();
    out.passing = counter->peak - before - out.kept;
    return out;
  };
  step(2);  // makes tables and gradients
  return {step(2), step(3)};
}

MixerMemory measure(ModelConfig config, int64_t length, bool bf16) {
  config.attention_layers.clear();
  config.vocab_size = kVocabulary;
  config.bos_token_id = config.eos_token_id = -1;
  const auto one = steps(config, 1, length, bf16), two = steps(config, 2, length, bf16);
  const auto a_token = [&](int64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(length); };
  const double layer = a_token((two[1].kept - two[0].kept) - (one[1].kept - one[0].kept));
  return {.layer = layer,
          .fixed = static_cast<double>(two[0].kept - one[0].kept) - layer * static_cast<double>(2 * length),
          .passing = a_token(one[1].passing - one[0].passing)};
}

}  // namespace

MixerMemory measured_mixer(const ModelConfig& model, int64_t seq_len, bool bf16) {
  static std::mutex mutex;
  static std::map<std::string, MixerMemory> known;
  const int64_t length = std::min(seq_len, kTokens);
  const std::string key = fmt::format("{} {} {}", model.to_json().dump(), length, bf16);
  const std::lock_guard lock(mutex);
  const auto found = known.find(key);
  return found != known.end() ? found->second : known.emplace(key, measure(model, length, bf16)).first->second;
}

}  // namespace lazy::train
