#include "train/planning/memory.h"

#include <algorithm>
#include <cmath>

#include "model/checkpoint_names.h"
#include "model/parameter_shapes.h"
#include "ops/linear_cross_entropy.h"
#include "train/planning/measured_mixer.h"

namespace lazy::train {

namespace {

constexpr int64_t kFloat = 4;

// Sizes in elements. T: tokens of a micro-batch.
struct Sizes {
  explicit Sizes(const MemoryQuestion& q)
      : layers(q.model.num_layers),
        attending(q.model.all_attention() ? layers : static_cast<int64_t>(q.model.attention_layers.size())),
        norms(q.model.mlp ? 2 : 1),
        tokens(q.batch_size * q.seq_len),
        width(q.model.hidden_size),
        queries(q.model.num_heads * q.model.head_dim),
        keys(q.model.num_kv_heads * q.model.head_dim),
        inner(q.model.mlp ? q.model.intermediate() : 0),
        heads(q.model.num_heads),
        vocabulary(q.model.vocab_size),
        element(q.bf16 ? 2 : 4),
        parameters(count_parameters(q.model).total),
        layer_matrices(product_weights(q.model) / layers),
        gpu(q.gpu) {}
  int64_t layers, attending, norms, tokens, width, queries, keys, inner, heads, vocabulary, element, parameters,
      layer_matrices;
  bool gpu;
};

// Of a number that is divided among the ranks.
int64_t share(int64_t bytes, int64_t ranks) { return (bytes + ranks - 1) / ranks; }

// What attention keeps of one layer: q and k rotated, v and the output; on a CPU also the joint projection, of which v
// is a view.
int64_t attention_bytes(const Sizes& s) {
  const int64_t projection = s.gpu ? s.keys : s.queries + 2 * s.keys;
  return s.tokens * (projection + (s.queries + s.keys) + s.queries) * s.element;
}
int64_t log_sum_bytes(const Sizes& s) { return s.tokens * s.heads * kFloat; }
int64_t mlp_bytes(const Sizes& s) {
  return s.tokens * (s.gpu ? 2 : 3) * s.inner * s.element;
}  // gate, up; their product
int64_t stream_bytes(const Sizes& s) { return s.tokens * s.width * s.element; }
int64_t norm_bytes(const Sizes& s) { return (s.gpu ? 1 : 2) * stream_bytes(s); }  // the sum; its norm
// What goes into all layers: branch and residual. The first has none; without an MLP the second's is what went into the
// first.
int64_t streams(const Sizes& s) { return s.norms > 1 ? 2 * s.layers - 1 : std::max<int64_t>(1, 2 * s.layers - 2); }
int64_t final_norm_bytes(const Sizes& s) { return 2 * stream_bytes(s); }  // the loss keeps the norm

int64_t bytes(double a_token, const Sizes& s) { return std::llround(a_token * static_cast<double>(s.tokens)); }

// What a layer of another mixer keeps beside norms, residuals and MLP, and what its backward pass needs. It was counted
// on a CPU, where these keep more; and the recurrences' GPU kernels keep no more than what they are counted with.
struct OtherMixer {
  explicit OtherMixer(const MemoryQuestion& q) {
    if (q.model.all_attention()) return;
    MemoryQuestion cpu = q;
    cpu.gpu = false;
    const Sizes s(cpu);
    const MixerMemory measured = measured_mixer(q.model, q.seq_len, q.bf16);
    kept = std::llround(measured.fixed) + bytes(measured.layer, s) - s.norms * norm_bytes(s) - mlp_bytes(s);
    passing = bytes(measured.passing, s);
  }
  int64_t kept = 0, passing = 0;
};

// Of MAC's layers, not of those that attend alone.
bool is_own_attention(const ModelConfig& model, const std::string& name) {
  const CheckpointNames names(model);
  if (name.find(".attn.") == std::string::npos) return false;
  return model.mixer_of(std::stoll(name.substr(names.layers.size()))) != "attention";
}

}  // namespace

std::vector<MemoryPart> state_parts(const MemoryQuestion& q) {
  const Sizes s(q);
  const bool zero2 = q.sharding == Sharding::zero2 && q.ranks > 1,
             full = q.sharding == Sharding::full_shard && q.ranks > 1;
  const int64_t all = s.parameters * kFloat;
  int64_t gradients = all;
  if (full) gradients = share(all, q.ranks);
  // Micro-batches add up in whole gradients; each bucket's sum over the ranks comes beside it.
  if (zero2) gradients = all + share(all, q.ranks);
  const int64_t head = s.vocabulary * s.width, two_layers = std::min<int64_t>(2, s.layers) * s.layer_matrices;
  std::vector<MemoryPart> parts{{"weights, fp32", full ? share(all, q.ranks) : all},
                                {"gradients, fp32", gradients},
                                {"moments, fp32", zero2 || full ? share(2 * all, q.ranks) : 2 * all}};
  if (!full) {
    parts.push_back({"bf16 copies", q.bf16 ? (s.layers * s.layer_matrices + head) * s.element : 0});
    return parts;
  }
  // Layers are gathered one ahead of the one at work. The head, or the embedding, comes in fp32.
  parts.push_back({"gathered weights", two_layers * s.element + head * (kFloat + (q.bf16 ? s.element : 0))});
  // A layer's are summed while those of the next one come, a product's at a time. A tied head's wait for the
  // embedding's.
  const int64_t coming = two_layers + 2 * s.inner * s.width;
  parts.push_back(
      {"gradients on their way", (q.model.tie_embeddings ? coming + head : std::max(coming, head)) * kFloat});
  return parts;
}

int64_t product_weights(const ModelConfig& model) {
  int64_t sum = 0;
  for (const ParameterShape& p : parameter_shapes(model)) {
    // MAC's pieces read their projections themselves, but for the last one; the encodings of distances are multiplied
    // in fp32.
    const bool apart = p.name.ends_with(".r_proj.weight") ||
                       (model.mixer == "titans_mac" && p.name.find(".memory.") != std::string::npos) ||
                       (model.mixer == "titans_mac" && is_own_attention(model, p.name));
    if (p.name.ends_with("_proj.weight") && !apart) sum += p.count();
  }
  return sum;
}

std::vector<MemoryPart> activation_parts(const MemoryQuestion& q) {
  const Sizes s(q);
  const int64_t tokens = 2 * s.tokens * 8;  // ids and labels
  // The loss computes its gradients along: of the hidden states and of the head.
  const int64_t loss = (s.tokens + s.vocabulary) * s.width * s.element;
  std::vector<MemoryPart> parts{{"tokens", tokens}};
  if (q.checkpointing == Checkpointing::full) {
    parts.push_back({"inputs of the layers", streams(s) * stream_bytes(s)});
    parts.push_back({"final norm", final_norm_bytes(s)});
  } else if (q.checkpointing == Checkpointing::attention) {
    // The branch; the MLP's norm keeps the residual.
    parts.push_back({"inputs of attention", (s.norms > 1 ? s.layers : streams(s)) * stream_bytes(s)});
    parts.push_back({"norms and residuals", (s.norms - 1) * s.layers * norm_bytes(s) + final_norm_bytes(s)});
    parts.push_back({"MLP", s.layers * mlp_bytes(s)});
  } else {
    parts.push_back({"norms and residuals", s.norms * s.layers * norm_bytes(s) + final_norm_bytes(s)});
    if (s.attending > 0) parts.push_back({"attention", s.attending * (attention_bytes(s) + log_sum_bytes(s))});
    if (s.attending < s.layers) parts.push_back({q.model.mixer, (s.layers - s.attending) * OtherMixer(q).kept});
    if (q.checkpointing != Checkpointing::mlp) parts.push_back({"MLP", s.layers * mlp_bytes(s)});
  }
  parts.push_back({"gradients of the loss", loss});
  return parts;
}

std::vector<MemoryPart> passing_parts(const MemoryQuestion& q) {
  const Sizes s(q);
  const int64_t chunk = std::min(s.tokens * s.vocabulary * kFloat, ops::kLogitsBytesCuda);
  // The head's gradient is summed in fp32.
  const int64_t logits =
      chunk + s.vocabulary * s.width * (q.bf16 ? kFloat : 0) + s.tokens * (kFloat + 1);  // log-probability, hit
  // Gradients of q, k and v, in fp32 while dQ is summed, and of the output; those of gate, up and their product.
  const OtherMixer other(q);
  const int64_t attention =
      s.attending == 0
          ? 0
          : s.tokens * (s.queries * (kFloat + 2 * s.element) + 2 * s.keys * s.element) + 2 * log_sum_bytes(s);
  const int64_t products = s.tokens * 3 * s.inner * s.element;
  const int64_t mlp = products + s.tokens * s.width * s.element;
  int64_t again = 0;  // what the layer keeps without checkpointing is there again
  if (q.checkpointing == Checkpointing::mlp) again += products;
  if (q.checkpointing == Checkpointing::attention || q.checkpointing == Checkpointing::full) {
    again += norm_bytes(s) + std::max(s.attending > 0 ? attention_bytes(s) + log_sum_bytes(s) : 0, other.kept);
  }
  if (q.checkpointing == Checkpointing::full) again += (s.norms - 1) * norm_bytes(s) + products;
  return {{"logits chunk", logits}, {"backward of a layer", std::max({attention, other.passing, mlp}) + again}};
}

int64_t peak_bytes(const MemoryQuestion& q) {
  int64_t total = 0, largest = 0;
  for (const auto& parts : {state_parts(q), activation_parts(q)}) {
    for (const MemoryPart& part : parts) total += part.bytes;
  }
  for (const MemoryPart& part : passing_parts(q)) largest = std::max(largest, part.bytes);
  return total + largest;
}

}  // namespace lazy::train
