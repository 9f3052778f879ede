#include "benchmarks/decode.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "benchmarks/agreement.h"
#include "benchmarks/timing.h"
#include "core/error.h"
#include "ops/decode.h"

namespace lazy::benchmarks {

namespace {

constexpr int64_t kPage = 256;

struct Inputs {
  at::Tensor q, k, v, lengths, bias, tau;   // q (batch, 1, heads, dim), k and v (batch, keys, kv_heads, dim)
};

struct Variant {
  std::string name;
  bool elastic, bias, paged, heads_first;
};

Inputs make_inputs(const DecodeBenchmark& o, int64_t keys, int64_t dim, at::ScalarType type) {
  at::manual_seed(1);
  const double scale = std::sqrt(o.score_scale);
  return {(at::randn({o.batch, 1, o.heads, dim}) * scale).to(type),
          (at::randn({o.batch, keys, o.kv_heads, dim}) * scale).to(type),
          at::randn({o.batch, keys, o.kv_heads, dim}).to(type),
          at::full({o.batch}, keys, at::kLong),
          at::randn({o.heads, o.bias_window}) * 1e-3,
          at::full({o.heads}, -1.0)};
}

// The cache in memory order (batch, kv_heads, keys, dim), seen as before.
at::Tensor heads_first(const at::Tensor& x) { return x.transpose(1, 2).contiguous().transpose(1, 2); }

struct Call {
  Inputs in;
  at::Tensor table;
  ops::AttentionOptions options;
  at::Tensor operator()() const {
    return std::get<0>(ops::decode(in.q, in.k, in.v, in.lengths, in.bias, in.tau, options, table));
  }
};

Call prepare(Inputs in, const Variant& variant) {
  Call call;
  if (variant.paged) {
    const int64_t batch = in.k.size(0), pages = (in.k.size(1) + kPage - 1) / kPage;
    call.table = at::randperm(batch * pages, at::kLong).view({batch, pages});
    for (at::Tensor* x : {&in.k, &in.v}) {
      const at::Tensor whole = at::constant_pad_nd(*x, {0, 0, 0, 0, 0, pages * kPage - x->size(1)});
      at::Tensor pool = at::empty({batch * pages, kPage, x->size(2), x->size(3)}, x->options());
      pool.index_copy_(0, call.table.flatten(), whole.reshape(pool.sizes()));
      *x = pool;
    }
  } else {                                  // a cache of its own: none finds the other's in the processor's cache
    in.k = variant.heads_first ? heads_first(in.k) : in.k.clone();
    in.v = variant.heads_first ? heads_first(in.v) : in.v.clone();
  }
  if (!variant.elastic) in.tau = at::Tensor();
  if (!variant.bias) in.bias = at::Tensor();
  call.options.normalizer = variant.elastic ? "elastic" : "softmax";
  call.in = in;
  return call;
}

// The same from ATen operations in fp32, for the tolerance.
at::Tensor plain(const Inputs& in, const Variant& variant) {
  const int64_t group = in.q.size(2) / in.k.size(2), n = in.k.size(1);
  const at::Tensor q = in.q.transpose(1, 2).to(at::kFloat);
  const at::Tensor k = in.k.transpose(1, 2).repeat_interleave(group, 1).to(at::kFloat), v = in.v.transpose(1, 2).repeat_interleave(group, 1).to(at::kFloat);
  at::Tensor s = at::matmul(q, k.transpose(2, 3)) / std::sqrt(static_cast<double>(q.size(3)));
  if (variant.bias) {
    const int64_t w = std::min(in.bias.size(1), n);
    s.slice(3, n - w) += in.bias.slice(1, 0, w).flip(1).unsqueeze(1);
  }
  at::Tensor p = at::softmax(s, -1);
  if (variant.elastic) p = at::relu(p + in.tau.view({1, -1, 1, 1}) / static_cast<double>(n));
  return at::matmul(p, v).transpose(1, 2).to(in.q.scalar_type());
}

void check(const DecodeBenchmark& o, int64_t dim, at::ScalarType type, const Variant& variant) {
  const Inputs in = make_inputs(o, 1000, dim, type);
  Inputs exact = in;
  for (at::Tensor* x : {&exact.q, &exact.k, &exact.v, &exact.bias, &exact.tau}) *x = x->to(at::kDouble);
  const at::Tensor reference = prepare(exact, variant)();
  require_agreement("bench decode", variant.name, type, prepare(in, variant)(), plain(in, variant), reference);
}

double alive_share(const Inputs& in) {
  ops::AttentionOptions options;
  options.return_stats = true;
  const at::Tensor stats = std::get<2>(ops::decode(in.q, in.k, in.v, in.lengths, {}, in.tau, options));
  return stats[2].mean(at::kDouble).item<double>() / static_cast<double>(in.k.size(1));
}

// GB/s of a plain pass over more memory than a processor's cache holds.
double memory_read_speed() {
  const at::Tensor numbers = at::ones({int64_t{1} << 27});
  return 4.0 * static_cast<double>(numbers.numel()) / medians_ms(5, {[&] { numbers.sum(); }})[0] / 1e6;
}

}  // namespace

nlohmann::json run_decode(const DecodeBenchmark& o) {
  if (o.heads % o.kv_heads != 0) fail("bench decode", "--heads: expected a multiple of --kv-heads {}, found {}", o.kv_heads, o.heads);
  const at::NoGradGuard guard;
  const std::vector<Variant> variants = {{"softmax", false, false, false, false},
                                         {"elastic", true, false, false, false},
                                         {"elastic + bias", true, true, false, false},
                                         {"  heads first", true, true, false, true},
                                         {"  paged", true, true, true, false}};
  const double read_speed = memory_read_speed();
  nlohmann::json result = {{"read_gb_per_s", read_speed}, {"batch", o.batch}, {"keys", o.keys}, {"heads", o.heads}, {"kv_heads", o.kv_heads},
                           {"bias_window", o.bias_window}, {"threads", at::get_num_threads()}, {"score_scale", o.score_scale}};
  fmt::print("Decoding one token a sequence: batch {}, {} cached keys, {} heads ({} of keys and values), {} threads. Medians of "
             "{}. Each variant\nagrees with the float64 definition. GB/s of what has to be read: K and those rows of V that carry weight; "
             "ratio = the faster\nPyTorch SDPA's time / ours. Caches of their own, so that none finds another's in the processor's. "
             "Summing 512 MiB reads {:.1f} GB/s.\n",
             o.batch, o.keys, o.heads, o.kv_heads, at::get_num_threads(), o.repeats, read_speed);
  for (const std::string& dtype : o.dtypes) {
    const at::ScalarType type = dtype == "fp32" ? at::kFloat : at::kBFloat16;
    for (const int64_t dim : o.head_dims) {
      for (const Variant& variant : variants) check(o, dim, type, variant);
      const Inputs in = make_inputs(o, o.keys, dim, type);
      const double alive = alive_share(in);
      const double half = static_cast<double>(in.k.numel()) * (dtype == "fp32" ? 4 : 2);  // K, or V
      fmt::print("\n{} head size {}   alive: {:.0f} % of keys\n{:28} {:>9} {:>7} {:>7}\n", dtype, dim, 100 * alive, "", "time", "GB/s", "ratio");
      const bool grouped = o.heads != o.kv_heads;
      const at::Tensor q = in.q.transpose(1, 2), k = heads_first(in.k).transpose(1, 2), v = heads_first(in.v).transpose(1, 2);
      const at::Tensor k_tokens = in.k.transpose(1, 2), v_tokens = in.v.transpose(1, 2);
      auto sdpa = [&](const at::Tensor& keys, const at::Tensor& values) {
        at::scaled_dot_product_attention(q, keys, values, {}, 0, false, std::nullopt, grouped);
      };
      std::vector<std::string> names = {"PyTorch SDPA, heads first", "PyTorch SDPA, tokens first"};
      std::vector<std::function<void()>> works = {[&] { sdpa(k, v); }, [&] { sdpa(k_tokens, v_tokens); }};
      std::vector<double> bytes = {2 * half, 2 * half};
      for (const Variant& variant : variants) {
        bytes.push_back(variant.elastic ? (1 + alive) * half : 2 * half);
        names.push_back(variant.name);
        works.push_back([call = prepare(in, variant)] { call(); });
      }
      const std::vector<double> ms = medians_ms(o.repeats, works);
      const double base = std::min(ms[0], ms[1]);
      for (size_t n = 0; n < names.size(); ++n) {
        fmt::print("{:28} {:6.2f} ms {:7.1f} {:7.2f}\n", names[n], ms[n], bytes[n] / ms[n] / 1e6, base / ms[n]);
        result["rows"].push_back(
            {{"dtype", dtype}, {"head_dim", dim}, {"variant", names[n]}, {"ms", ms[n]}, {"gb_per_s", bytes[n] / ms[n] / 1e6}, {"ratio", base / ms[n]}, {"alive", alive}});
      }
      std::fflush(stdout);
    }
  }
  return result;
}

}  // namespace lazy::benchmarks
