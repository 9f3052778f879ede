#include "benchmarks/attention.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "benchmarks/agreement.h"
#include "benchmarks/timing.h"
#include "ops/attention.h"

namespace lazy::benchmarks {

namespace {

struct Inputs {
  at::Tensor q, k, v, d_out, bias, tau;  // q_BLHD
};

struct Variant {
  std::string name;
  bool elastic, bias;
};

Inputs make_inputs(const AttentionBenchmark& o, int64_t length, int64_t dim, at::ScalarType type) {
  at::manual_seed(1);
  auto random = [&](double scale) {
    return (at::randn({o.batch, length, o.heads, dim}) * scale).to(type).set_requires_grad(true);
  };
  Inputs in{random(std::sqrt(o.score_scale)), random(std::sqrt(o.score_scale)), random(1), {}, {}, {}};
  in.d_out = at::randn({o.batch, length, o.heads, dim}).to(type);
  in.bias = (at::randn({o.heads, o.bias_window}) * 1e-3).set_requires_grad(true);
  in.tau = at::full({o.heads}, -1.0).set_requires_grad(true);
  return in;
}

at::Tensor ours(const Inputs& in, const Variant& variant) {
  ops::AttentionOptions options;
  options.normalizer = variant.elastic ? "elastic" : "softmax";
  return std::get<0>(ops::attention(in.q, in.k, in.v, variant.bias ? in.bias : at::Tensor(),
                                    variant.elastic ? in.tau : at::Tensor(), options));
}

at::Tensor peer(const Inputs& in) {
  return at::scaled_dot_product_attention(in.q.transpose(1, 2), in.k.transpose(1, 2), in.v.transpose(1, 2), {}, 0, true)
      .transpose(1, 2);
}

std::vector<at::Tensor> wanted(const Inputs& in, const Variant& variant) {
  std::vector<at::Tensor> list{in.q, in.k, in.v};
  if (variant.elastic) list.push_back(in.tau);
  if (variant.bias) list.push_back(in.bias);
  return list;
}

// The same mechanism from ATen operations in fp32, with an n x n matrix: the second reference of the tolerance.
at::Tensor plain(const Inputs& in, const Variant& variant) {
  const at::Tensor q = in.q.transpose(1, 2).to(at::kFloat), k = in.k.transpose(1, 2).to(at::kFloat);
  const int64_t n = q.size(2);
  at::Tensor s = at::matmul(q, k.transpose(2, 3)) / std::sqrt(static_cast<double>(q.size(3)));
  const at::Tensor row = at::arange(n).unsqueeze(1), distance = row - at::arange(n).unsqueeze(0), seen = distance >= 0;
  if (variant.bias) {
    const int64_t w = in.bias.size(1);
    const at::Tensor index = distance.clamp(0, w - 1);
    s = s + at::where(distance < w, in.bias.index_select(1, index.flatten()).view({-1, n, n}), at::zeros({}));
  }
  at::Tensor p = at::softmax(s.masked_fill(~seen, -INFINITY), -1);
  if (variant.elastic) p = at::relu(p + in.tau.view({1, -1, 1, 1}) / (row + 1)) * seen;
  return at::matmul(p, in.v.transpose(1, 2).to(at::kFloat)).transpose(1, 2).to(in.q.scalar_type());
}

// Output and gradients on a short problem.
void check(const AttentionBenchmark& o, int64_t dim, at::ScalarType type, const Variant& variant) {
  const Inputs in = make_inputs(o, 320, dim, type);
  Inputs exact;
  for (auto [to, from] : {std::pair{&exact.q, &in.q}, {&exact.k, &in.k}, {&exact.v, &in.v}, {&exact.bias, &in.bias},
                          {&exact.tau, &in.tau}}) {
    *to = from->detach().to(at::kDouble).set_requires_grad(true);
  }
  exact.d_out = in.d_out.to(at::kDouble);
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

// Shares of the visible pairs, and of the 64 x 64 tiles with a visible pair, that hold a positive weight. Tiles from the
// first head's scores.
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
    const at::Tensor row = at::arange(begin, end).unsqueeze(1), seen = at::arange(end).unsqueeze(0) <= row;
    const at::Tensor s = at::mm(q.slice(0, begin, end), k.slice(0, 0, end).t()) / std::sqrt(static_cast<double>(q.size(1)));
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

// Peak of resident memory above what is resident before, over one forward and backward; 0 where the system does not say.
double peak_mib(const Inputs& in, const Variant& variant) {
  std::ofstream("/proc/self/clear_refs") << "5";
  const double before = status_mib("VmRSS");
  torch::autograd::grad({ours(in, variant)}, wanted(in, variant), {in.d_out});
  return status_mib("VmHWM") - before;
}

}  // namespace

nlohmann::json run_attention(const AttentionBenchmark& o) {
  const std::vector<Variant> variants = {
      {"softmax", false, false}, {"softmax + bias", false, true}, {"elastic", true, false}, {"elastic + bias", true, true}};
  nlohmann::json result = {{"batch", o.batch}, {"length", o.length}, {"heads", o.heads}, {"bias_window", o.bias_window},
                           {"threads", at::get_num_threads()}, {"score_scale", o.score_scale}};
  fmt::print("Causal attention, batch {}, length {}, {} heads, {} threads. Medians of {}. Each variant agrees with the "
             "float64 definition.\nGFLOP/s count 4 B H L^2 D / 2 forward and 3.5 times that with the backward; ratio = "
             "PyTorch SDPA's time / ours.\n",
             o.batch, o.length, o.heads, at::get_num_threads(), o.repeats);
  for (const std::string& dtype : o.dtypes) {
    const at::ScalarType type = dtype == "fp32" ? at::kFloat : at::kBFloat16;
    for (int64_t dim : o.head_dims) {
      for (const Variant& variant : variants) check(o, dim, type, variant);
      const Inputs in = make_inputs(o, o.length, dim, type);
      const double peak = peak_mib(in, variants.back());
      const Alive alive = alive_shares(in);
      const double flops = 2.0 * static_cast<double>(o.batch * o.heads * o.length * o.length * dim);
      // 0 where an earlier size has left enough memory behind.
      const std::string memory =
          peak < 1 ? ""
                   : fmt::format("   peak memory {:.0f} MiB (n x n weights would take {:.0f})", peak,
                                 4.0 * static_cast<double>(o.batch * o.heads * o.length * o.length) / (1 << 20));
      fmt::print("\n{} head size {}   alive: {:.0f} % of pairs, {:.0f} % of 64 x 64 tiles{}\n{:16} {:>9} {:>9} {:>7}   {:>9} {:>9} "
                 "{:>7}\n",
                 dtype, dim, 100 * alive.pairs, 100 * alive.tiles, memory, "", "forward", "GFLOP/s", "ratio", "+backward",
                 "GFLOP/s", "ratio");
      std::vector<std::string> names = {"PyTorch SDPA"};
      std::vector<std::function<void()>> works;  // forward, then forward and backward, of each
      auto add = [&](const std::function<at::Tensor()>& forward, const std::vector<at::Tensor>& inputs) {
        works.push_back([=] {
          at::NoGradGuard guard;
          forward();
        });
        works.push_back([=, &in] { torch::autograd::grad({forward()}, inputs, {in.d_out}); });
      };
      add([&] { return peer(in); }, {in.q, in.k, in.v});
      for (const Variant& variant : variants) {
        names.push_back(variant.name);
        add([&] { return ours(in, variant); }, wanted(in, variant));
      }
      const std::vector<double> ms = medians_ms(o.repeats, works);
      for (size_t n = 0; n < names.size(); ++n) {
        const double forward = ms[2 * n], both = ms[2 * n + 1];
        fmt::print("{:16} {:6.1f} ms {:9.0f} {:7.2f}   {:6.1f} ms {:9.0f} {:7.2f}\n", names[n], forward, flops / forward / 1e6,
                   ms[0] / forward, both, 3.5 * flops / both / 1e6, ms[1] / both);
        result["rows"].push_back({{"dtype", dtype}, {"head_dim", dim}, {"variant", names[n]}, {"forward_ms", forward},
                                  {"forward_backward_ms", both}, {"forward_ratio", ms[0] / forward},
                                  {"forward_backward_ratio", ms[1] / both}, {"alive_pairs", alive.pairs},
                                  {"alive_tiles", alive.tiles}, {"peak_mib", peak}});
      }
      std::fflush(stdout);
    }
  }
  return result;
}

}  // namespace lazy::benchmarks
