#include "model/mixers/mamba2_kind.h"

#include <algorithm>

#include "core/error.h"
#include "model/mixers/expansion.h"

namespace lazy {
namespace {

void infer_mamba2_sizes(ModelConfig& m) {
  MixerConfig& x = m.mix;
  if (x.value_dim == 0) x.value_dim = 64;
  if (x.heads == 0) x.heads = std::max<int64_t>(1, 2 * m.hidden_size / x.value_dim);
  if (x.key_dim == 0) x.key_dim = x.state_size;
}

void check_mamba2(const ModelConfig& m) {
  const MixerConfig& x = m.mix;
  if (x.key_dim != x.state_size)
    fail("model", "mixer.key_dim: expected mamba2's state_size ({}), found {}", x.state_size, x.key_dim);
  if (x.heads % x.groups != 0)
    fail("model", "mixer.groups: expected a divisor of heads ({}), found {}", x.heads, x.groups);
  if (mamba2_inner(x) % m.hidden_size != 0) {
    fail("model", "mixer.heads: expected heads times value_dim to be a multiple of hidden_size ({}), found {} times {}",
         m.hidden_size, x.heads, x.value_dim);
  }
  if (x.conv_size < 1) fail("model", "mixer.conv_size: expected 1 or more taps in mamba2, found {}", x.conv_size);
  if (!x.gate) fail("model", "mixer.gate: expected true, mamba2 has no form without its gate, found false");
}

std::vector<ParameterShape> mamba2_shapes(const ModelConfig& m) {
  const MixerConfig& x = m.mix;
  const int64_t d = m.hidden_size, inner = mamba2_inner(x), convolved = mamba2_convolved(x);
  return {{"mixer.dt_bias", {x.heads}, true, /*wide=*/true},
          {"mixer.A_log", {x.heads}, true, /*wide=*/true},
          {"mixer.D", {x.heads}, true, /*wide=*/true},
          {"mixer.conv1d.weight", {convolved, 1, x.conv_size}},
          {"mixer.conv1d.bias", {convolved}},
          {"mixer.in_proj.weight", {inner + convolved + x.heads, d}},
          {"mixer.norm.weight", {inner}},
          {"mixer.out_proj.weight", {d, inner}}};
}

void read_mamba2(const config_json::Fields& fields, ModelConfig& m) {
  MixerConfig& x = m.mix;
  fields.integer({"state_size"}, x.state_size);
  fields.integer({"n_groups"}, x.groups);
  fields.integer({"conv_kernel"}, x.conv_size);
  read_inner_heads(fields, "head_dim", "hidden_size", m);
  int64_t heads = x.heads;
  fields.integer({"num_heads"}, heads);
  if (heads != x.heads)
    fields.wrong("num_heads", fmt::format("{} (expand times hidden_size over head_dim)", x.heads).c_str(), heads);
  fields.number({"layer_norm_epsilon"}, m.norm_eps);  // transformers' name
  fields.must_be_absent("use_bias", "biases in the projections");
  fields.must_be_absent("D_has_hdim", "a skip for each dimension");
  fields.must_be_absent("norm_before_gate", "norms before the gate");
  must_be_on(fields, "use_conv_bias");
  must_be_on(fields, "rmsnorm");
}

void write_mamba2(const ModelConfig& m, nlohmann::ordered_json& out) {
  const MixerConfig& x = m.mix;
  out["num_heads"] = x.heads;
  out["head_dim"] = x.value_dim;
  out["expand"] = mamba2_inner(x) / m.hidden_size;
  out["state_size"] = x.state_size;
  out["n_groups"] = x.groups;
  out["conv_kernel"] = x.conv_size;
  out["use_conv_bias"] = true;
  out["use_bias"] = false;
  out["rmsnorm"] = true;
  out["chunk_size"] = 256;  // of the peers' kernels; ours change nothing but the time
  out["layer_norm_epsilon"] = m.norm_eps;
}

}  // namespace

const MixerKind kMamba2 = {
    .name = "mamba2",
    .model_type = "mamba2",
    .architecture = "Mamba2ForCausalLM",
    .mlp = false,
    .norm_eps = 1e-5,
    .keys = {"conv_size", "state_size", "groups", "gate"},  // of gate it says what the one value is
    .infer_sizes = infer_mamba2_sizes,
    .check = check_mamba2,
    .shapes = mamba2_shapes,
    .read = read_mamba2,
    .write = write_mamba2};

}  // namespace lazy
