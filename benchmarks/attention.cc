#include "benchmarks/benchmarks.h"

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "benchmarks/timing.h"
#include "core/error.h"
#include "ops/attention.h"
#include "ops/load_cuda.h"

namespace lazy::benchmarks {

namespace {

struct Inputs {
  at::Tensor q, k, v, d_out, bias, tau;  // q, k, v and d_out are (batch, length, heads, dim)
};

struct Variant {
  std::string name;
  bool elastic, bias, stats = false, score_stats = false;
};

// A backend of PyTorch's scaled_dot_product_attention. The flags are ignored on the CPU, which has only one backend.
struct Peer {
  std::string name;
  bool cudnn, flash;
};

at::Device device_of(const AttentionBenchmark& o) {
  return at::Device(o.device == "cuda" ? at::kCUDA : at::kCPU, o.device == "cuda" ? 0 : -1);
}

Inputs make_inputs(const AttentionBenchmark& o, int64_t length, int64_t dim, at::ScalarType type) {
  at::manual_seed(1);
  const auto options = at::TensorOptions(device_of(o)).dtype(at::kFloat);
  auto random = [&](double scale) {
    return (at::randn({o.batch, length, o.heads, dim}, options) * scale).to(type).set_requires_grad(true);
  };
  Inputs in{random(std::sqrt(o.score_scale)), random(std::sqrt(o.score_scale)), random(1), {}, {}, {}};
  in.d_out = at::randn({o.batch, length, o.heads, dim}, options).to(type);
  in.bias = (at::randn({o.heads, o.bias_window}, options) * 1e-3).set_requires_grad(true);
  in.tau = at::full({o.heads}, -1.0, options).set_requires_grad(true);
  return in;
}

at::Tensor ours(const Inputs& in, const Variant& variant) {
  ops::AttentionOptions options;
  options.normalizer = variant.elastic ? "elastic" : "softmax";
  options.return_stats = variant.stats;
  options.return_score_stats = variant.score_stats;
  return std::get<0>(ops::attention(in.q, in.k, in.v, variant.bias ? in.bias : at::Tensor(),
                                    variant.elastic ? in.tau : at::Tensor(), options));
}

at::Tensor run_peer(const Inputs& in, const Peer& peer) {
  if (in.q.is_cuda()) {
    at::globalContext().setSDPUseCuDNN(peer.cudnn);
    at::globalContext().setSDPUseFlash(peer.flash);
    at::globalContext().setSDPUseMemEfficient(false);
    at::globalContext().setSDPUseMath(false);
  }
  return at::scaled_dot_product_attention(in.q.transpose(1, 2), in.k.transpose(1, 2), in.v.transpose(1, 2), {}, 0, true)
      .transpose(1, 2);
}

std::vector<at::Tensor> wanted(const Inputs& in, const Variant& variant) {
  std::vector<at::Tensor> list{in.q, in.k, in.v};
  if (variant.elastic) list.push_back(in.tau);
  if (variant.bias) list.push_back(in.bias);
  return list;
}

// Computes the attention of the variant in fp32 by ATen operations, with an n x n matrix. The check accepts an error of
// our kernels that is at most twice the error of this result.
at::Tensor plain(const Inputs& in, const Variant& variant) {
  const at::Tensor q = in.q.transpose(1, 2).to(at::kFloat), k = in.k.transpose(1, 2).to(at::kFloat);
  const int64_t n = q.size(2);
  at::Tensor s = at::matmul(q, k.transpose(2, 3)) / std::sqrt(static_cast<double>(q.size(3)));
  const at::Tensor row = at::arange(n, q.device()).unsqueeze(1), distance = row - row.t(), seen = distance >= 0;
  if (variant.bias) {
    const int64_t w = in.bias.size(1);
    const at::Tensor index = distance.clamp(0, w - 1);
    s = s +
        at::where(distance < w, in.bias.index_select(1, index.flatten()).view({-1, n, n}), at::zeros({}, s.options()));
  }
  at::Tensor p = at::softmax(s.masked_fill(~seen, -INFINITY), -1);
  if (variant.elastic) p = at::relu(p + in.tau.view({1, -1, 1, 1}) / (row + 1)) * seen;
  return at::matmul(p, in.v.transpose(1, 2).to(at::kFloat)).transpose(1, 2).to(in.q.scalar_type());
}

// Checks the output and the gradients on a short problem against the float64 reference.
void check(const AttentionBenchmark& o, int64_t dim, at::ScalarType type, const Variant& variant) {
  AttentionBenchmark one_entry = o;
  one_entry.batch = 1;
  const Inputs in = make_inputs(one_entry, 320, dim, type);
  Inputs exact;
  for (auto [to, from] : {std::pair{&exact.q, &in.q},
                          {&exact.k, &in.k},
                          {&exact.v, &in.v},
                          {&exact.bias, &in.bias},
                          {&exact.tau, &in.tau}}) {
    *to = from->detach().to(at::kCPU, at::kDouble).set_requires_grad(true);
  }
  exact.d_out = in.d_out.to(at::kCPU, at::kDouble);
  const at::Tensor reference = ours(exact, variant), found = ours(in, variant), expected = plain(in, variant);
  auto gradients = [&](const at::Tensor& out, const Inputs& of) {
    return torch::autograd::grad({out}, wanted(of, variant), {of.d_out});
  };
  const auto g = gradients(found, in), g_expected = gradients(expected, in), g_reference = gradients(reference, exact);
  auto one = [&](const char* what, const at::Tensor& x, const at::Tensor& second, const at::Tensor& truth) {
    require_agreement("bench attention", fmt::format("{} of {}", what, variant.name), type, x, second, truth);
  };
  one("the output", found, expected, reference);
  const char* names[] = {"d_q", "d_k", "d_v", "d_tau or d_distance_bias", "d_distance_bias"};
  for (size_t n = 0; n < g.size(); ++n) one(names[n], g[n], g_expected[n], g_reference[n]);
}

struct Alive {
  double pairs = 0, tiles = 0;
};

// Returns the fractions of the query-key pairs and of the 64 x 64 tiles that have a positive weight, relative to the
// pairs and tiles that are visible under the causal mask. The tile fraction is computed for the first head of the first
// sequence.
Alive alive_shares(const Inputs& in) {
  at::NoGradGuard guard;
  ops::AttentionOptions options;
  options.return_stats = true;
  const auto [out, lse, stats] = ops::attention(in.q, in.k, in.v, {}, in.tau, options);
  const double n = static_cast<double>(in.q.size(1)), rows = static_cast<double>(stats[2].numel()) / n;
  Alive alive;
  alive.pairs = stats[2].sum(at::kDouble).item<double>() / (rows * n * (n + 1) / 2);
  int64_t live = 0, all = 0;
  const at::Tensor q = in.q.select(0, 0).select(1, 0).to(at::kFloat), k = in.k.select(0, 0).select(1, 0).to(at::kFloat);
  for (int64_t begin = 0; begin < in.q.size(1); begin += 64) {
    const int64_t end = std::min<int64_t>(begin + 64, in.q.size(1)), tiles = (end + 63) / 64;
    const at::Tensor row = at::arange(begin, end, q.device()).unsqueeze(1),
                     seen = at::arange(end, q.device()).unsqueeze(0) <= row;
    const at::Tensor s =
        at::mm(q.slice(0, begin, end), k.slice(0, 0, end).t()) / std::sqrt(static_cast<double>(q.size(1)));
    const at::Tensor p = at::softmax(s.masked_fill(~seen, -INFINITY), -1);
    const at::Tensor columns = at::constant_pad_nd((p * (row + 1) > 1).any(0).to(at::kFloat), {0, tiles * 64 - end});
    live += (columns.view({tiles, 64}).sum(1) > 0).sum().item<int64_t>();
    all += tiles;
  }
  alive.tiles = static_cast<double>(live) / static_cast<double>(all);
  return alive;
}

double status_mib(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key + ":", 0) == 0) return std::stod(line.substr(key.size() + 1)) / 1024;
  }
  return 0;
}

// Returns the increase of the peak memory, in MiB, during one forward and backward pass: allocated memory on a GPU,
// resident memory on the CPU. Returns 0 if the system does not report the resident memory.
double peak_mib(const Inputs& in, const Variant& variant) {
  if (in.q.is_cuda()) {
    auto* const allocator = at::getDeviceAllocator(at::kCUDA);
    allocator->resetPeakStats(0);
    const auto before = allocator->getDeviceStats(0).allocated_bytes[0].current;
    torch::autograd::grad({ours(in, variant)}, wanted(in, variant), {in.d_out});
    return static_cast<double>(allocator->getDeviceStats(0).allocated_bytes[0].peak - before) / (1 << 20);
  }
  std::ofstream("/proc/self/clear_refs") << "5";
  const double before = status_mib("VmRSS");
  torch::autograd::grad({ours(in, variant)}, wanted(in, variant), {in.d_out});
  return status_mib("VmHWM") - before;
}

}  // namespace

nlohmann::json run_attention(const AttentionBenchmark& o) {
  const at::Device device = device_of(o);
  if (device.is_cuda()) ops::load_cuda();
  std::vector<Variant> variants = {{"softmax", false, false},
                                   {"softmax + bias", false, true},
                                   {"elastic", true, false},
                                   {"elastic + bias", true, true},
                                   {"softmax + score stats", false, false, false, true}};
  if (device.is_cuda()) variants.push_back({"elastic + bias + stats", true, true, true});
  nlohmann::json result = {{"device", device.str()},       {"batch", o.batch},
                           {"length", o.length},           {"heads", o.heads},
                           {"bias_window", o.bias_window}, {"threads", at::get_num_threads()},
                           {"score_scale", o.score_scale}};
  const double unit = device.is_cuda() ? 1e9 : 1e6;
  const std::string rate = device.is_cuda() ? "TFLOP/s" : "GFLOP/s";
  fmt::print(
      "Causal attention, batch {}, length {}, {} heads, {}. Medians of {} runs. Each variant agrees with the float64 "
      "definition.\n{}: a forward pass of batch B, H heads, length L and head size D counts as 4 B H L^2 D / 2 "
      "operations; a forward and a backward pass together count as 3.5 times as many. ratio = time of the peer / time "
      "of lazy::attention.\n",
      o.batch, o.length, o.heads, device.is_cuda() ? device.str() : fmt::format("{} threads", at::get_num_threads()),
      o.repeats, rate);
  for (const std::string& dtype : o.dtypes) {
    const at::ScalarType type = dtype == "fp32" ? at::kFloat : at::kBFloat16;
    std::vector<Peer> peers = {{"PyTorch SDPA", false, false}};
    if (device.is_cuda()) {
      if (type == at::kFloat)
        fail("bench attention", "--dtype fp32: on a GPU, the compared PyTorch kernels only support bf16");
      peers = {{"cuDNN", true, false}, {"FlashAttention-2", false, true}};
    }
    for (int64_t dim : o.head_dims) {
      for (const Variant& variant : variants) check(o, dim, type, variant);
      const Inputs in = make_inputs(o, o.length, dim, type);
      const double peak = peak_mib(in, variants.back());
      const Alive alive = alive_shares(in);
      const double flops = 2.0 * static_cast<double>(o.batch * o.heads * o.length * o.length * dim);
      // The measured increase is 0 if the allocator reuses memory of an earlier problem size; then it is not printed.
      const std::string memory =
          peak < 1 ? ""
                   : fmt::format("   peak memory {:.0f} MiB (a matrix of all attention weights would need {:.0f} MiB)",
                                 peak, 4.0 * static_cast<double>(o.batch * o.heads * o.length * o.length) / (1 << 20));
      std::string ratios;
      for (const Peer& peer : peers)
        ratios += fmt::format(" {:>{}}", peers.size() == 1 ? "ratio" : "/ " + peer.name, peers.size() == 1 ? 7 : 18);
      fmt::print(
          "\n{} head size {}   nonzero weights: {:.0f} % of the visible pairs; {:.0f} % of the 64 x 64 tiles have at "
          "least one{}\n{:22} {:>9} {:>9}{}   {:>9} {:>9}{}\n",
          dtype, dim, 100 * alive.pairs, 100 * alive.tiles, memory, "", "forward", rate, ratios, "+backward", rate,
          ratios);
      std::vector<std::string> names;
      // `works` has two functions for each implementation: the forward pass, and the forward and backward pass.
      std::vector<std::function<void()>> works;
      auto add = [&](const std::string& name, const std::function<at::Tensor()>& forward,
                     const std::vector<at::Tensor>& inputs) {
        names.push_back(name);
        works.push_back([=] {
          at::NoGradGuard guard;
          forward();
        });
        works.push_back([=, &in] { torch::autograd::grad({forward()}, inputs, {in.d_out}); });
      };
      for (const Peer& peer : peers) add(peer.name, [&] { return run_peer(in, peer); }, {in.q, in.k, in.v});
      for (const Variant& variant : variants)
        add(
            variant.name, [&] { return ours(in, variant); }, wanted(in, variant));
      const std::vector<double> ms =
          device.is_cuda() ? device_medians_ms(o.repeats, 2, works) : medians_ms(o.repeats, works);
      for (size_t n = 0; n < names.size(); ++n) {
        nlohmann::json row = {{"dtype", dtype},
                              {"head_dim", dim},
                              {"variant", names[n]},
                              {"forward_ms", ms[2 * n]},
                              {"forward_backward_ms", ms[2 * n + 1]},
                              {"alive_pairs", alive.pairs},
                              {"alive_tiles", alive.tiles},
                              {"peak_mib", peak}};
        std::string line = fmt::format("{:22}", names[n]);
        for (const size_t both : {0, 1}) {
          const double time = ms[2 * n + both];
          line += fmt::format("{}{:7.{}f} ms {:9.0f}", both ? "   " : " ", time, device.is_cuda() ? 3 : 1,
                              (both ? 3.5 : 1) * flops / time / unit);
          for (size_t p = 0; p < peers.size(); ++p) {
            line += fmt::format(" {:{}.2f}", ms[2 * p + both] / time, peers.size() == 1 ? 7 : 18);
            const std::string what = both ? "forward_backward_ratio" : "forward_ratio";
            if (peers.size() == 1)
              row[what] = ms[2 * p + both] / time;
            else
              row[what][peers[p].name] = ms[2 * p + both] / time;
          }
        }
        fmt::print("{}\n", line);
        result["rows"].push_back(std::move(row));
      }
      std::fflush(stdout);
    }
  }
  return result;
}

}  // namespace lazy::benchmarks
