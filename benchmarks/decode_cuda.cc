#include <ATen/ATen.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "benchmarks/decode_inputs.h"
#include "benchmarks/timing.h"
#include "core/error.h"
#include "ops/load_cuda.h"

namespace lazy::benchmarks {

namespace {

const DecodeVariant kSoftmax{"softmax", false, false, false, false};

// Checks the variant against float64, on a short cache and on the first and last sequence of the long cache.
void check(const DecodeBenchmark& o, const DecodeInputs& in, const DecodeCall& call, const DecodeVariant& variant) {
  const at::ScalarType type = in.q.scalar_type();
  const DecodeInputs few = make_inputs(o, 1000, in.q.size(3), type, at::kCUDA);
  const at::Tensor exact = prepare(few.to(at::kCPU, at::kDouble, at::kDouble), variant)();
  require_agreement("bench decode", variant.name, type, prepare(few, variant)().cpu(), plain(few, variant).cpu(),
                    exact);
  const at::Tensor found = call();
  for (const int64_t b : {int64_t{0}, o.batch - 1}) {
    const DecodeInputs one = in.sequence(b);
    require_agreement("bench decode", variant.name, type, found.narrow(0, b, 1), plain(one, variant),
                      plain(one, variant, at::kDouble));
  }
}

struct DecodePeer {
  std::string name;
  std::function<at::Tensor()> work;  // returns batch x heads x dim values; the shape depends on the implementation
};

// Returns all PyTorch calls that compute softmax decoding: two backends, two cache layouts, and the query heads of a
// group passed either as heads or as query rows.
std::vector<DecodePeer> peers(const DecodeInputs& in) {
  const int64_t batch = in.q.size(0), kv_heads = in.k.size(2), group = in.q.size(2) / kv_heads, dim = in.q.size(3);
  std::vector<DecodePeer> list;
  for (const bool first : {true, false}) {
    const at::Tensor k = (first ? heads_first(in.k) : in.k).transpose(1, 2),
                     v = (first ? heads_first(in.v) : in.v).transpose(1, 2);
    for (const bool fold : {false, true}) {
      if (fold && group == 1) continue;
      const at::Tensor q = fold ? in.q.reshape({batch, kv_heads, group, dim}) : in.q.transpose(1, 2).contiguous();
      const std::string how = fmt::format("{} first{}", first ? "heads" : "tokens", fold ? ", heads as rows" : "");
      list.push_back(
          {"cuDNN, " + how, [=] { return std::get<0>(at::_scaled_dot_product_cudnn_attention(q, k, v, {}, false)); }});
      list.push_back(
          {"FlashAttention-2, " + how, [=] { return std::get<0>(at::_scaled_dot_product_flash_attention(q, k, v)); }});
    }
  }
  return list;
}

// Returns the PyTorch implementations that support the problem, after checking their results.
std::vector<DecodePeer> working_peers(const DecodeInputs& in) {
  const DecodeInputs one = in.sequence(0);
  const at::Tensor computed = plain(one, kSoftmax).flatten(), exact = plain(one, kSoftmax, at::kDouble).flatten();
  std::vector<DecodePeer> list;
  for (const DecodePeer& peer : peers(in)) {
    at::Tensor found;
    try {
      found = peer.work();
    } catch (const c10::Error& e) {
      const std::string text = e.what_without_backtrace();
      fmt::print("{}: not supported: {}\n", peer.name, text.substr(0, text.find('\n')));
      continue;
    }
    require_agreement("bench decode", peer.name, in.q.scalar_type(), found.narrow(0, 0, 1).flatten(), computed, exact);
    list.push_back(peer);
  }
  if (list.empty())
    fail_run("bench decode", "no peer supports this problem; use bf16 and a head size that is a multiple of 8");
  return list;
}

// Returns two fractions of the keys: the keys with a nonzero weight in one query head, and the keys with a nonzero
// weight in at least one query head of a group. A kernel must read the rows of V of the second fraction.
std::pair<double, double> alive_shares(const DecodeInputs& all) {
  const DecodeInputs in = all.sequence(0);
  const int64_t kv_heads = in.k.size(2), group = in.q.size(2) / kv_heads, n = in.k.size(1), dim = in.q.size(3);
  const at::Tensor q = in.q.reshape({kv_heads, group, dim}).to(at::kFloat),
                   k = in.k[0].permute({1, 2, 0}).to(at::kFloat);
  const at::Tensor p = at::softmax(at::matmul(q, k) / std::sqrt(static_cast<double>(dim)), -1);
  const at::Tensor alive = (p + in.tau.view({kv_heads, group, 1}) / static_cast<double>(n)) > 0;
  return {alive.to(at::kFloat).mean().item<double>(), alive.any(1).to(at::kFloat).mean().item<double>()};
}

// Measures the speed of a 2 GiB copy in TB/s. Bytes read and bytes written both count.
double copy_speed() {
  const at::Tensor from = at::ones({int64_t{1} << 31}, at::TensorOptions(at::kCUDA).dtype(at::kByte)),
                   to = at::empty_like(from);
  return 2.0 * static_cast<double>(from.numel()) / device_medians_ms(5, 3, {[&] { to.copy_(from); }})[0] / 1e9;
}

}  // namespace

nlohmann::json run_decode_cuda(const DecodeBenchmark& o) {
  ops::load_cuda();
  const std::vector<DecodeVariant> variants = {kSoftmax,
                                               {"elastic", true, false, false, false},
                                               {"elastic + bias", true, true, false, false},
                                               {"  heads first", true, true, false, true},
                                               {"  paged", true, true, true, false}};
  const double copy = copy_speed();
  nlohmann::json result = {{"device", "cuda"},
                           {"copy_tb_per_s", copy},
                           {"batch", o.batch},
                           {"keys", o.keys},
                           {"heads", o.heads},
                           {"kv_heads", o.kv_heads},
                           {"bias_window", o.bias_window},
                           {"score_scale", o.score_scale}};
  fmt::print(
      "Decoding one token per sequence on a GPU: batch {}, {} cached keys, {} query heads ({} key/value heads). "
      "Medians of {} runs. All results agree with\nfloat64. TB/s: bytes of K and of the rows of V with nonzero "
      "weight. ratio = time of the fastest peer / time of lazy::decode. A copy runs at {:.2f} TB/s.\n",
      o.batch, o.keys, o.heads, o.kv_heads, o.repeats, copy);
  for (const std::string& dtype : o.dtypes) {
    const at::ScalarType type = dtype == "fp32" ? at::kFloat : at::kBFloat16;
    for (const int64_t dim : o.head_dims) {
      const DecodeInputs in = make_inputs(o, o.keys, dim, type, at::kCUDA);
      const auto [alive, needed] = alive_shares(in);
      // bytes of K, which are as many as the bytes of V
      const double half = static_cast<double>(in.k.numel()) * (dtype == "fp32" ? 4 : 2);
      fmt::print(
          "\n{} head size {}   keys with nonzero weight: {:.0f} % per query head, {:.0f} % for at least one query head "
          "of a group\n",
          dtype, dim, 100 * alive, 100 * needed);
      const std::vector<DecodePeer> others = working_peers(in);
      std::vector<std::string> names;
      std::vector<std::function<void()>> works;
      std::vector<double> bytes;
      for (const DecodePeer& peer : others) {
        names.push_back(peer.name);
        works.push_back([work = peer.work] { work(); });
        bytes.push_back(2 * half);
      }
      for (const DecodeVariant& variant : variants) {
        const DecodeCall call = prepare(in, variant);
        check(o, in, call, variant);
        names.push_back(variant.name);
        works.push_back([call] { call(); });
        bytes.push_back(variant.elastic ? (1 + needed) * half : 2 * half);
      }
      const std::vector<double> ms = device_medians_ms(o.repeats, 3, works);
      const double best = *std::min_element(ms.begin(), ms.begin() + static_cast<std::ptrdiff_t>(others.size()));
      fmt::print("{:44} {:>11} {:>7} {:>7}\n", "", "time", "TB/s", "ratio");
      for (size_t n = 0; n < names.size(); ++n) {
        fmt::print("{:44} {:8.4f} ms {:7.2f} {:7.2f}\n", names[n], ms[n], bytes[n] / ms[n] / 1e9, best / ms[n]);
        result["rows"].push_back({{"dtype", dtype},
                                  {"head_dim", dim},
                                  {"variant", names[n]},
                                  {"ms", ms[n]},
                                  {"tb_per_s", bytes[n] / ms[n] / 1e9},
                                  {"ratio", best / ms[n]},
                                  {"alive", alive},
                                  {"alive_in_group", needed}});
      }
      std::fflush(stdout);
    }
  }
  return result;
}

}  // namespace lazy::benchmarks
