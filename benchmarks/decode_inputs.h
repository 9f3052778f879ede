// Shared by the decode benchmarks on CPU and GPU: inputs, the timed variants of lazy::decode, and a reference
// implementation with ATen operations.
#pragma once
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "benchmarks/benchmarks.h"
#include "ops/decode.h"

namespace lazy::benchmarks {

constexpr int64_t kDecodePage = 256;

struct DecodeInputs {
  at::Tensor q, k, v, lengths, bias, tau;  // q (batch, 1, heads, dim), k and v (batch, keys, kv_heads, dim)
  DecodeInputs to(at::Device device, at::ScalarType type, at::ScalarType parameter) const {
    return {q.to(device, type), k.to(device, type),         v.to(device, type),
            lengths.to(device), bias.to(device, parameter), tau.to(device, parameter)};
  }
  DecodeInputs sequence(int64_t b) const {
    return {q.narrow(0, b, 1), k.narrow(0, b, 1), v.narrow(0, b, 1), lengths.narrow(0, b, 1), bias, tau};
  }
};

struct DecodeVariant {
  std::string name;
  bool elastic, bias, paged, heads_first;
};

inline DecodeInputs make_inputs(const DecodeBenchmark& o, int64_t keys, int64_t dim, at::ScalarType type,
                                at::Device device) {
  at::manual_seed(1);
  const double scale = std::sqrt(o.score_scale);
  const auto random = [&](at::IntArrayRef sizes) { return at::randn(sizes, at::TensorOptions(device)); };
  return {(random({o.batch, 1, o.heads, dim}) * scale).to(type),
          (random({o.batch, keys, o.kv_heads, dim}) * scale).to(type),
          random({o.batch, keys, o.kv_heads, dim}).to(type),
          at::full({o.batch}, keys, at::TensorOptions(device).dtype(at::kLong)),
          random({o.heads, o.bias_window}) * 1e-3,
          at::full({o.heads}, -1.0, at::TensorOptions(device))};
}

// Returns a copy of the cache with memory order (batch, kv_heads, keys, dim), viewed with the shape of x.
inline at::Tensor heads_first(const at::Tensor& x) { return x.transpose(1, 2).contiguous().transpose(1, 2); }

struct DecodeCall {
  DecodeInputs in;
  at::Tensor table;
  ops::AttentionOptions options;
  at::Tensor operator()() const {
    return std::get<0>(ops::decode(in.q, in.k, in.v, in.lengths, in.bias, in.tau, options, table));
  }
};

inline DecodeCall prepare(DecodeInputs in, const DecodeVariant& variant) {
  DecodeCall call;
  if (variant.paged) {
    const int64_t batch = in.k.size(0), pages = (in.k.size(1) + kDecodePage - 1) / kDecodePage;
    call.table = at::randperm(batch * pages, at::kLong).view({batch, pages}).to(in.k.device());
    for (at::Tensor* x : {&in.k, &in.v}) {
      const at::Tensor whole = at::constant_pad_nd(*x, {0, 0, 0, 0, 0, pages * kDecodePage - x->size(1)});
      at::Tensor pool = at::empty({batch * pages, kDecodePage, x->size(2), x->size(3)}, x->options());
      pool.index_copy_(0, call.table.flatten(), whole.reshape(pool.sizes()));
      *x = pool;
    }
  } else {  // each variant has separate memory, so that it cannot profit from cached data of another variant
    in.k = variant.heads_first ? heads_first(in.k) : in.k.clone();
    in.v = variant.heads_first ? heads_first(in.v) : in.v.clone();
  }
  if (!variant.elastic) in.tau = at::Tensor();
  if (!variant.bias) in.bias = at::Tensor();
  call.options.normalizer = variant.elastic ? "elastic" : "softmax";
  call.in = in;
  return call;
}

// Computes decode attention with ATen operations in `type`, as the reference.
inline at::Tensor plain(const DecodeInputs& in, const DecodeVariant& variant, at::ScalarType type = at::kFloat) {
  const int64_t group = in.q.size(2) / in.k.size(2), n = in.k.size(1);
  const at::Tensor q = in.q.transpose(1, 2).to(type);
  const at::Tensor k = in.k.transpose(1, 2).repeat_interleave(group, 1).to(type),
                   v = in.v.transpose(1, 2).repeat_interleave(group, 1).to(type);
  at::Tensor s = at::matmul(q, k.transpose(2, 3)) / std::sqrt(static_cast<double>(q.size(3)));
  if (variant.bias) {
    const int64_t w = std::min(in.bias.size(1), n);
    s.slice(3, n - w) += in.bias.slice(1, 0, w).flip(1).unsqueeze(1);
  }
  at::Tensor p = at::softmax(s, -1);
  if (variant.elastic) p = at::relu(p + in.tau.view({1, -1, 1, 1}) / static_cast<double>(n));
  return at::matmul(p, v).transpose(1, 2).to(type == at::kDouble ? type : in.q.scalar_type());
}

}  // namespace lazy::benchmarks
