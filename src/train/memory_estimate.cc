#include "train/memory_estimate.h"

#include <ATen/ATen.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <mutex>

#include "model/language_model.h"
#include "model/parameters.h"
#include "ops/attention.h"
#include "ops/linear_cross_entropy.h"

namespace lazy::train {

using distributed::Sharding;

namespace {

// Maximum sequence length of measure_mixer_memory() in tokens. It equals the interval, in tokens, at which mixers
// (layers such as Mamba2 that replace attention) save their state for the backward pass.
constexpr int64_t kTokens = 256;
constexpr int64_t kVocabulary = 32;

// Current and peak bytes of the CPU tensors that this thread has allocated since counting began.
struct LiveBytes final : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device device) override {
    if (!device.is_cpu()) return;
    live += size;
    peak = std::max(peak, live);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t live = 0, peak = 0;
};

struct StepMemory {
  int64_t saved = 0, transient = 0;
};

// Runs a training step of a stack of layers with batch sizes 2 and 3. Batch size 1 is not used because it sometimes
// avoids a copy that larger batch sizes need.
std::array<StepMemory, 2> steps(ModelConfig config, int64_t layers, int64_t length, bool bf16) {
  config.num_layers = layers;
  LanguageModel model(config, 1);
  model.set_compute_dtype(bf16 ? at::kBFloat16 : at::kFloat);
  const auto counter = std::make_shared<LiveBytes>();
  const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, counter);
  const auto step = [&](int64_t batch) {
    const at::Tensor ids = at::zeros({batch, length}, at::kLong);
    const int64_t before = counter->live;
    at::Tensor loss = model.loss(ids, ids);
    StepMemory out{.saved = counter->live - before};
    counter->peak = counter->live;
    loss.backward();
    out.transient = counter->peak - before - out.saved;
    return out;
  };
  step(2);  // The first call also allocates tables and gradients, so its result is not used.
  return {step(2), step(3)};
}

MixerMemory measure(ModelConfig config, int64_t length, bool bf16) {
  config.mixer.attention_layers.clear();
  config.vocab_size = kVocabulary;
  config.bos_token_id = config.eos_token_id = -1;
  const auto one = steps(config, 1, length, bf16), two = steps(config, 2, length, bf16);
  const auto a_token = [&](int64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(length); };
  const double layer = a_token((two[1].saved - two[0].saved) - (one[1].saved - one[0].saved));
  return {.per_token = layer,
          .per_layer = static_cast<double>(two[0].saved - one[0].saved) - layer * static_cast<double>(2 * length),
          .transient_per_token = a_token(one[1].transient - one[0].transient)};
}

}  // namespace

MixerMemory measure_mixer_memory(const ModelConfig& model, int64_t seq_len, bool bf16) {
  static std::mutex mutex;
  static std::map<std::string, MixerMemory> known;
  const int64_t length = std::min(seq_len, kTokens);
  const std::string key = fmt::format("{} {} {}", model.to_json().dump(), length, bf16);
  const std::lock_guard lock(mutex);
  const auto found = known.find(key);
  return found != known.end() ? found->second : known.emplace(key, measure(model, length, bf16)).first->second;
}

namespace {

constexpr int64_t kFloat = 4;

// Sizes of the model and of one micro-batch, in elements. `tokens` is the number of tokens in a micro-batch,
// `attending` the number of attention layers, `queries` and `keys` are the widths of the query and key projections, and
// `inner` is the width of the MLP.
struct ModelSizes {
  explicit ModelSizes(const MemoryQuery& q)
      : layers(q.model.num_layers),
        attending(q.model.all_attention() ? layers : static_cast<int64_t>(q.model.mixer.attention_layers.size())),
        norms(q.model.mlp.enabled ? 2 : 1),
        tokens(q.batch_size * q.seq_len),
        width(q.model.hidden_size),
        queries(q.model.attention.num_heads * q.model.attention.head_dim),
        keys(q.model.attention.num_kv_heads * q.model.attention.head_dim),
        inner(q.model.mlp.enabled ? q.model.intermediate() : 0),
        heads(q.model.attention.num_heads),
        gated(q.model.gate_size() > 0 ? q.model.gate_size() + queries : 0),
        vocabulary(q.model.vocab_size),
        element(q.bf16 ? 2 : 4),
        parameters(count_parameters(q.model).total),
        layer_matrices(product_weights(q.model) / layers),
        gpu(q.gpu),
        fp8(q.fp8),
        alive_sum(q.gpu && q.bf16 && q.model.has_offset() && q.model.attention.head_dim <= ops::kMaxAliveSumHead) {}
  int64_t layers, attending, norms, tokens, width, queries, keys, inner, heads, gated, vocabulary, element, parameters,
      layer_matrices;
  bool gpu, fp8, alive_sum;
};

// Size of one rank's shard of `bytes`, rounded up.
int64_t share(int64_t bytes, int64_t ranks) { return (bytes + ranks - 1) / ranks; }

// Bytes that attention saves in one layer for the backward pass: q and k after RoPE, v, the output, the sum of the
// values with nonzero weight (alive_sum in lazy/attention.h), the gates and the gated output. A CPU also saves the
// joint QKV projection, because v is a view of it. With fp8, the quantized inputs of both matrix products are also
// saved.
int64_t attention_bytes(const ModelSizes& s) {
  const int64_t projection = s.gpu ? s.keys : s.queries + 2 * s.keys, outputs = s.alive_sum ? 2 : 1;
  return s.tokens * ((projection + (s.queries + s.keys) + outputs * s.queries + s.gated) * s.element +
                     (s.fp8 ? s.width + s.queries : 0));
}
int64_t log_sum_bytes(const ModelSizes& s) { return s.tokens * s.heads * kFloat; }
// Bytes that the MLP saves for the backward pass: gate and up, and on a CPU also their product. With fp8, the inputs of
// both matrix products are also saved.
int64_t mlp_bytes(const ModelSizes& s) {
  if (s.fp8) return s.tokens * (2 * s.inner * s.element + s.width + s.inner);
  return s.tokens * (s.gpu ? 2 : 3) * s.inner * s.element;
}
int64_t stream_bytes(const ModelSizes& s) { return s.tokens * s.width * s.element; }
// Bytes that a norm saves for the backward pass: its input, which is the sum of residual and branch. A CPU also saves
// the normalized result, unless fp8 replaces it.
int64_t norm_bytes(const ModelSizes& s) { return (s.gpu || s.fp8 ? 1 : 2) * stream_bytes(s); }
// Number of tensors that are saved as inputs of layers. A layer has two input tensors, which its first norm adds: the
// residual and the output of the preceding branch. The first layer has only one. Without an MLP, the residual of the
// second layer is the input of the first layer and is not counted again.
int64_t streams(const ModelSizes& s) { return s.norms > 1 ? 2 * s.layers - 1 : std::max<int64_t>(1, 2 * s.layers - 2); }
// Bytes that the final norm and the loss save: the input of the norm and the normalized hidden states.
int64_t final_norm_bytes(const ModelSizes& s) { return 2 * stream_bytes(s); }

int64_t bytes(double a_token, const ModelSizes& s) { return std::llround(a_token * static_cast<double>(s.tokens)); }

// Memory of a layer with a mixer other than attention: what it saves in addition to norms, residuals and MLP, and what
// its backward pass allocates. The values are measured on a CPU, and the known CPU sizes of norms, residuals and MLP
// are subtracted. The GPU kernels of the recurrences do not save more than the measured amount.
struct OtherMixer {
  explicit OtherMixer(const MemoryQuery& q) {
    if (q.model.all_attention()) return;
    MemoryQuery cpu = q;
    cpu.gpu = false;
    const ModelSizes s(cpu);
    const MixerMemory measured = measure_mixer_memory(q.model, q.seq_len, q.bf16);
    saved = std::llround(measured.per_layer) + bytes(measured.per_token, s) - s.norms * norm_bytes(s) - mlp_bytes(s);
    transient = bytes(measured.transient_per_token, s);
  }
  int64_t saved = 0, transient = 0;
};

// Returns whether a weight belongs to the attention inside a MAC layer (Titans, memory as context) instead of a plain
// attention layer.
bool is_own_attention(const ModelConfig& model, const std::string& name) {
  const CheckpointNames names(model);
  if (name.find(".attn.") == std::string::npos) return false;
  return model.mixer_of(std::stoll(name.substr(names.layers.size()))) != MixerType::attention;
}

}  // namespace

std::vector<MemoryPart> state_parts(const MemoryQuery& q) {
  const ModelSizes s(q);
  const bool zero2 = q.sharding == Sharding::zero2 && q.ranks > 1,
             full = q.sharding == Sharding::full_shard && q.ranks > 1;
  const int64_t all = s.parameters * kFloat;
  int64_t gradients = all;
  if (full) gradients = share(all, q.ranks);
  // Micro-batches accumulate into unsharded gradients. In addition, each rank stores its shard of the reduced
  // gradients.
  if (zero2) gradients = all + share(all, q.ranks);
  const int64_t head = s.vocabulary * s.width, two_layers = std::min<int64_t>(2, s.layers) * s.layer_matrices;
  std::vector<MemoryPart> parts{{"weights, fp32", full ? share(all, q.ranks) : all},
                                {"gradients, fp32", gradients},
                                {"moments, fp32", zero2 || full ? share(2 * all, q.ranks) : 2 * all}};
  if (!full) {
    parts.push_back({"bf16 copies", q.bf16 ? (s.layers * s.layer_matrices + head) * s.element : 0});
    return parts;
  }
  // One layer is prefetched while the previous one computes. The output head or the embedding is gathered in fp32.
  parts.push_back({"gathered weights", two_layers * s.element + head * (kFloat + (q.bf16 ? s.element : 0))});
  // The gradients of a layer are reduced while the gradients of the next layer are computed, one matrix at a time. The
  // gradient of a tied output head is kept until the gradient of the embedding is available.
  const int64_t coming = two_layers + 2 * s.inner * s.width;
  parts.push_back({"in-flight gradients", (q.model.tie_embeddings ? coming + head : std::max(coming, head)) * kFloat});
  return parts;
}

int64_t product_weights(const ModelConfig& model) {
  int64_t sum = 0;
  for (const ParameterShape& p : parameter_shapes(model)) {
    // Two kinds of weights are used in fp32 and therefore need no copy in the compute dtype: the projections of
    // relative position encodings and the projections of MAC layers (Titans, memory as context). A MAC layer processes
    // a text in segments, and all segments except the last one read the fp32 weights.
    const bool apart = p.name.ends_with(".r_proj.weight") ||
                       (model.mixer.type == MixerType::titans_mac && p.name.find(".memory.") != std::string::npos) ||
                       (model.mixer.type == MixerType::titans_mac && is_own_attention(model, p.name));
    if (p.name.ends_with("_proj.weight") && !apart) sum += p.count();
  }
  return sum;
}

std::vector<MemoryPart> activation_parts(const MemoryQuery& q) {
  const ModelSizes s(q);
  const int64_t tokens = 2 * s.tokens * 8;  // token ids and labels, int64
  // The loss computes the gradients of the hidden states and of the output head in its forward pass.
  const int64_t loss = (s.tokens + s.vocabulary) * s.width * s.element;
  std::vector<MemoryPart> parts{{"tokens", tokens}};
  if (q.checkpointing == Checkpointing::full) {
    parts.push_back({"inputs of the layers", streams(s) * stream_bytes(s)});
    parts.push_back({"final norm", final_norm_bytes(s)});
  } else if (q.checkpointing == Checkpointing::attention) {
    // Of the two inputs of a layer, only the branch is counted here, because the norm of the MLP saves the residual.
    parts.push_back({"inputs of attention", (s.norms > 1 ? s.layers : streams(s)) * stream_bytes(s)});
    parts.push_back({"norms and residuals", (s.norms - 1) * s.layers * norm_bytes(s) + final_norm_bytes(s)});
    parts.push_back({"MLP", s.layers * mlp_bytes(s)});
  } else {
    parts.push_back({"norms and residuals", s.norms * s.layers * norm_bytes(s) + final_norm_bytes(s)});
    if (s.attending > 0) parts.push_back({"attention", s.attending * (attention_bytes(s) + log_sum_bytes(s))});
    if (s.attending < s.layers)
      parts.push_back({name(q.model.mixer.type), (s.layers - s.attending) * OtherMixer(q).saved});
    if (q.checkpointing != Checkpointing::mlp) parts.push_back({"MLP", s.layers * mlp_bytes(s)});
  }
  parts.push_back({"gradients of the loss", loss});
  return parts;
}

std::vector<MemoryPart> transient_parts(const MemoryQuery& q) {
  const ModelSizes s(q);
  const int64_t chunk = std::min(s.tokens * s.vocabulary * kFloat, ops::kLogitsBytesCuda);
  // The gradient of the output head accumulates in fp32.
  const int64_t logits =
      // The last term is one fp32 log-probability and one byte per token. The byte says whether the label is the most
      // likely token.
      chunk + s.vocabulary * s.width * (q.bf16 ? kFloat : 0) + s.tokens * (kFloat + 1);
  // `attention` counts the gradients of q, k, v and the output, where the gradient of q is accumulated in fp32. `mlp`
  // counts the gradients of gate, of up and of their product, which a GPU recomputes. With fp8, each gradient of a
  // matrix product has two additional quantized copies, by rows and transposed.
  const OtherMixer other(q);
  const int64_t attention =
      s.attending == 0
          ? 0
          : s.tokens * (s.queries * (kFloat + 2 * s.element) + 2 * s.keys * s.element) + 2 * log_sum_bytes(s);
  const int64_t products = s.tokens * 3 * s.inner * s.element;
  const int64_t mlp = (s.fp8 ? s.tokens * (2 * s.inner * (s.element + 2) + 2 * s.width)
                             : products + (s.gpu ? s.tokens * s.inner * s.element : 0)) +
                      stream_bytes(s);
  int64_t recomputed = 0;  // activations of one layer that activation checkpointing recomputes
  if (q.checkpointing == Checkpointing::mlp) recomputed += products;
  if (q.checkpointing == Checkpointing::attention || q.checkpointing == Checkpointing::full) {
    recomputed += norm_bytes(s) + std::max(s.attending > 0 ? attention_bytes(s) + log_sum_bytes(s) : 0, other.saved);
  }
  if (q.checkpointing == Checkpointing::full) recomputed += (s.norms - 1) * norm_bytes(s) + products;
  return {{"logits chunk", logits}, {"backward of a layer", std::max({attention, other.transient, mlp}) + recomputed}};
}

int64_t peak_bytes(const MemoryQuery& q) {
  int64_t total = 0, largest = 0;
  for (const auto& parts : {state_parts(q), activation_parts(q)}) {
    for (const MemoryPart& part : parts) total += part.bytes;
  }
  for (const MemoryPart& part : transient_parts(q)) largest = std::max(largest, part.bytes);
  return total + largest;
}

}  // namespace lazy::train
