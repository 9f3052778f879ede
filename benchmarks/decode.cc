#include "benchmarks/benchmarks.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "benchmarks/decode_inputs.h"
#include "benchmarks/timing.h"
#include "core/error.h"

namespace lazy::benchmarks {

namespace {

void check(const DecodeBenchmark& o, int64_t dim, at::ScalarType type, const DecodeVariant& variant) {
  const DecodeInputs in = make_inputs(o, 1000, dim, type, at::kCPU);
  const at::Tensor reference = prepare(in.to(at::kCPU, at::kDouble, at::kDouble), variant)();
  require_agreement("bench decode", variant.name, type, prepare(in, variant)(), plain(in, variant), reference);
}

double alive_share(const DecodeInputs& in) {
  ops::AttentionOptions options;
  options.return_stats = true;
  const at::Tensor stats = std::get<2>(ops::decode(in.q, in.k, in.v, in.lengths, {}, in.tau, options));
  return stats[2].mean(at::kDouble).item<double>() / static_cast<double>(in.k.size(1));
}

// Measures the memory bandwidth in GB/s by summing a tensor that is larger than the processor's cache.
double memory_read_speed() {
  const at::Tensor numbers = at::ones({int64_t{1} << 27});
  return 4.0 * static_cast<double>(numbers.numel()) / medians_ms(5, {[&] { numbers.sum(); }})[0] / 1e6;
}

}  // namespace

nlohmann::json run_decode(const DecodeBenchmark& o) {
  if (o.heads % o.kv_heads != 0)
    fail("bench decode", "--heads: expected a multiple of --kv-heads {}, found {}", o.kv_heads, o.heads);
  const at::NoGradGuard guard;
  if (o.device == "cuda") return run_decode_cuda(o);
  const std::vector<DecodeVariant> variants = {{"softmax", false, false, false, false},
                                               {"elastic", true, false, false, false},
                                               {"elastic + bias", true, true, false, false},
                                               {"  heads first", true, true, false, true},
                                               {"  paged", true, true, true, false}};
  const double read_speed = memory_read_speed();
  nlohmann::json result = {{"read_gb_per_s", read_speed},
                           {"batch", o.batch},
                           {"keys", o.keys},
                           {"heads", o.heads},
                           {"kv_heads", o.kv_heads},
                           {"bias_window", o.bias_window},
                           {"threads", at::get_num_threads()},
                           {"score_scale", o.score_scale}};
  fmt::print(
      "Decoding one token per sequence: batch {}, {} cached keys, {} query heads ({} key/value heads), {} threads. "
      "Medians of {} runs. Each variant\nagrees with the float64 definition. GB/s: bytes of K and of the rows of V "
      "with nonzero weight. ratio = time of the faster\nPyTorch SDPA variant / time of lazy::decode. Each variant has "
      "a separate KV cache, so that it cannot profit from the data of another variant in the processor's cache. "
      "For comparison, the sum of an array of 512 MiB reads {:.1f} GB/s.\n",
      o.batch, o.keys, o.heads, o.kv_heads, at::get_num_threads(), o.repeats, read_speed);
  for (const std::string& dtype : o.dtypes) {
    const at::ScalarType type = dtype == "fp32" ? at::kFloat : at::kBFloat16;
    for (const int64_t dim : o.head_dims) {
      for (const DecodeVariant& variant : variants) check(o, dim, type, variant);
      const DecodeInputs in = make_inputs(o, o.keys, dim, type, at::kCPU);
      const double alive = alive_share(in);
      // bytes of K, which are as many as the bytes of V
      const double half = static_cast<double>(in.k.numel()) * (dtype == "fp32" ? 4 : 2);
      fmt::print("\n{} head size {}   keys with nonzero weight: {:.0f} %\n{:28} {:>9} {:>7} {:>7}\n", dtype, dim,
                 100 * alive, "", "time", "GB/s", "ratio");
      const bool grouped = o.heads != o.kv_heads;
      const at::Tensor q = in.q.transpose(1, 2), k = heads_first(in.k).transpose(1, 2),
                       v = heads_first(in.v).transpose(1, 2);
      const at::Tensor k_tokens = in.k.transpose(1, 2), v_tokens = in.v.transpose(1, 2);
      auto sdpa = [&](const at::Tensor& keys, const at::Tensor& values) {
        at::scaled_dot_product_attention(q, keys, values, {}, 0, false, std::nullopt, grouped);
      };
      std::vector<std::string> names = {"PyTorch SDPA, heads first", "PyTorch SDPA, tokens first"};
      std::vector<std::function<void()>> works = {[&] { sdpa(k, v); }, [&] { sdpa(k_tokens, v_tokens); }};
      std::vector<double> bytes = {2 * half, 2 * half};
      for (const DecodeVariant& variant : variants) {
        bytes.push_back(variant.elastic ? (1 + alive) * half : 2 * half);
        names.push_back(variant.name);
        works.push_back([call = prepare(in, variant)] { call(); });
      }
      const std::vector<double> ms = medians_ms(o.repeats, works);
      const double base = std::min(ms[0], ms[1]);
      for (size_t n = 0; n < names.size(); ++n) {
        fmt::print("{:28} {:6.2f} ms {:7.1f} {:7.2f}\n", names[n], ms[n], bytes[n] / ms[n] / 1e6, base / ms[n]);
        result["rows"].push_back({{"dtype", dtype},
                                  {"head_dim", dim},
                                  {"variant", names[n]},
                                  {"ms", ms[n]},
                                  {"gb_per_s", bytes[n] / ms[n] / 1e6},
                                  {"ratio", base / ms[n]},
                                  {"alive", alive}});
      }
      std::fflush(stdout);
    }
  }
  return result;
}

}  // namespace lazy::benchmarks
