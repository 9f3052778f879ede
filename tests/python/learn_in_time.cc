// learn_in_time ttt|memory IN.safetensors OUT.safetensors: runs the recurrences of TTT and Titans for the Python tests.
// IN contains the inputs by name and d_out. The program writes the output of the dual form (`out`) and the gradient of
// each input (d_NAME) to OUT.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdio>
#include <string>

#include "model/mixers/titans/neural_memory.h"
#include "model/mixers/ttt_rule.h"
#include "model/safetensors.h"

namespace {

using Named = std::map<std::string, at::Tensor>;

std::vector<at::Tensor> numbered(const Named& in, const std::string& stem) {
  std::vector<at::Tensor> out;
  for (int n = 1; in.contains(stem + std::to_string(n)); ++n) out.push_back(in.at(stem + std::to_string(n)));
  return out;
}

at::Tensor ttt(const Named& in) {
  const auto state = lazy::initial_ttt_state({numbered(in, "W"), numbered(in, "b")}, in.at("q").size(0));
  return std::get<0>(lazy::ttt_chunks({in.at("q"), in.at("k"), in.at("v"), in.at("rate"), in.at("position_scale"),
                                       in.at("norm_weight"), in.at("norm_bias")},
                                      state));
}

at::Tensor memory(const Named& in) {
  const auto state = lazy::initial_memory_state(numbered(in, "W"), in.at("q").size(0));
  return std::get<0>(
      lazy::memory_chunks({in.at("q"), in.at("k"), in.at("v"), in.at("step"), in.at("log_momentum"), in.at("log_keep"),
                           in.contains("norm_weight") ? in.at("norm_weight") : at::Tensor()},
                          state, in.at("chunk").item<int64_t>()));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return std::fprintf(stderr, "usage: learn_in_time ttt|memory IN.safetensors OUT.safetensors\n"), 2;
  Named in = lazy::read_safetensors(argv[2]);
  std::vector<std::string> names;
  std::vector<at::Tensor> leaves;
  for (auto& [name, tensor] : in) {
    if (name == "d_out" || !tensor.is_floating_point()) continue;
    names.push_back(name);
    leaves.push_back(tensor.requires_grad_());
  }
  const at::Tensor out = std::string(argv[1]) == "ttt" ? ttt(in) : memory(in);
  const auto gradients = torch::autograd::grad({out}, leaves, {in.at("d_out")});
  lazy::NamedTensors result = {{"out", out.detach()}};
  for (size_t n = 0; n < names.size(); ++n) result.emplace_back("d_" + names[n], gradients[n]);
  lazy::write_safetensors(argv[3], result);
}
