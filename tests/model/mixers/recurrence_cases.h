// Test cases of the recurrences: several shapes, all kinds of decay, and the quantities to compare. They run on the
// device LAZY_TEST_DEVICE, by default on the CPU.
#pragma once
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <string>
#include <utility>
#include <vector>

#include "model/mixers/recurrence/linear_attention.h"
#include "ops/device.h"

namespace lazy::testing {

using recurrence::Inputs;
using recurrence::Outputs;

inline at::Tensor here(const at::Tensor& t) { return t.to(ops::test::test_device()); }

// Returns random numbers that are equal on every device.
inline at::Tensor randn(at::IntArrayRef shape, uint64_t seed, at::ScalarType type = at::kDouble) {
  return here(at::randn(shape, at::detail::createCPUGenerator(seed), at::TensorOptions().dtype(at::kDouble)).to(type));
}

enum class Decay { none, constant, tokens, strong };

struct Case {
  std::string name;
  bool delta = false;
  Decay decay = Decay::tokens;
  int64_t batch = 1, length = 1, groups = 2, heads = 2, key_dim = 5, value_dim = 3;

  Outputs loop(const Inputs& in) const { return delta ? recurrence::delta_rule_loop(in) : recurrence::decay_loop(in); }
  Outputs chunks(const Inputs& in, int64_t chunk) const {
    return delta ? recurrence::delta_rule_chunks(in, chunk) : recurrence::decay_chunks(in, chunk);
  }

  // Returns random inputs. Keys have norm 1, as in the mixers that use the delta rule.
  Inputs inputs(uint64_t seed) const {
    Inputs in;
    in.q = randn({batch, length, groups, key_dim}, seed);
    in.k = randn({batch, length, groups, key_dim}, seed + 1);
    in.k = in.k / in.k.norm(2, {3}, true).clamp_min(1e-9);
    in.v = randn({batch, length, heads, value_dim}, seed + 2);
    in.scale = 0.7;
    if (delta || decay == Decay::tokens) in.beta = at::sigmoid(randn({batch, length, heads}, seed + 3));
    if (decay == Decay::constant) in.log_decay = -at::exp(randn({heads}, seed + 4) - 2);
    if (decay == Decay::tokens) in.log_decay = -at::exp(randn({batch, length, heads}, seed + 4) - 1);
    if (!delta && decay != Decay::constant) in.skip = randn({heads}, seed + 5);
    // The decays range from almost 1 to almost 0, that is, to forgetting the whole state in one token.
    if (decay == Decay::strong) in.log_decay = -at::exp(4 * randn({batch, length, heads}, seed + 4));
    return in;
  }
};

inline std::vector<Case> cases(int64_t length, int64_t batch = 2) {
  std::vector<Case> out;
  for (const auto& [name, decay] : {std::pair{"none", Decay::none}, std::pair{"constant", Decay::constant},
                                    std::pair{"tokens", Decay::tokens}, std::pair{"strong", Decay::strong}}) {
    for (const bool delta : {false, true}) {
      Case c{.name = std::string(delta ? "delta rule, decay " : "decay ") + name, .delta = delta, .decay = decay};
      c.batch = batch, c.length = length;
      out.push_back(c);
    }
    Case grouped = *(out.end() - 2);
    grouped.name += ", two heads per group";
    grouped.heads = 4;
    out.push_back(grouped);
  }
  return out;
}

// Makes the differentiable inputs leaf tensors that require a gradient, and returns them.
inline std::vector<at::Tensor> leaves(Inputs& in) {
  std::vector<at::Tensor> out;
  for (at::Tensor* t : {&in.q, &in.k, &in.v, &in.log_decay, &in.beta, &in.skip, &in.initial_state}) {
    if (t->defined()) out.push_back(*t = t->detach().clone().requires_grad_(true));
  }
  return out;
}

inline double distance(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0 && b.numel() == 0) return 0;
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();  // NaN if a or b contains NaN
}

}  // namespace lazy::testing
