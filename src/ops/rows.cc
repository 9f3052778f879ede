#include "attention/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/rows.cc"
#include "hwy/foreach_target.h"
// These headers must come after foreach_target.h.
#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/cpu/convert-inl.h"
#include "attention/cpu/vector-inl.h"
#include "ops/rows.h"

HWY_BEFORE_NAMESPACE();
namespace lazy::ops::rows::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace cpu = kernels::cpu::HWY_NAMESPACE;
using cpu::F;
using cpu::kLanes;
using cpu::VF;

// Returns `dim` rounded up to whole SIMD vectors. The buffers of rows are padded with zeros to this size, so that the
// loops have no remainders.
size_t padded(int64_t dim) { return (static_cast<size_t>(dim) + kLanes - 1) / kLanes * kLanes; }

float* buffer(size_t which, int64_t dim) {
  thread_local std::vector<float> memory[5];
  if (memory[which].size() < padded(dim)) memory[which].resize(padded(dim));
  return memory[which].data();
}

const float* load(DType type, const void* data, int64_t offset, int64_t dim, size_t which) {
  if (type == DType::f32 && dim % kLanes == 0) return static_cast<const float*>(data) + offset;  // no copy needed
  float* row = buffer(which, dim);
  cpu::load_row(type, data, offset, 1, dim, 1.0f, row);
  std::fill(row + dim, row + padded(dim), 0.0f);
  return row;
}

void store(DType type, const float* row, int64_t dim, void* data, int64_t offset) {
  cpu::store_row(type, row, dim, 1.0f, data, offset, 1);
}

float dot(const float* a, const float* b, size_t n) {
  const F f;
  VF sum = hn::Zero(f);
  for (size_t i = 0; i < n; i += kLanes) sum = hn::MulAdd(hn::LoadU(f, a + i), hn::LoadU(f, b + i), sum);
  return cpu::sum_lanes(sum);
}

void rms_norm(DType type, const void* x, const void* residual, void* sum, const float* weight, float eps, void* y,
              int64_t begin, int64_t end, int64_t dim) {
  const F f;
  const float* w = load(DType::f32, weight, 0, dim, 0);
  float* out = buffer(3, dim);
  for (int64_t r = begin; r < end; ++r) {
    const float* row = load(type, x, r * dim, dim, 1);
    if (residual) {
      const float* other = load(type, residual, r * dim, dim, 2);
      for (size_t i = 0; i < padded(dim); i += kLanes) {
        hn::StoreU(hn::Add(hn::LoadU(f, row + i), hn::LoadU(f, other + i)), f, out + i);
      }
      store(type, out, dim, sum, r * dim);
      row = load(type, sum, r * dim, dim, 1);  // normalize the rounded sum, which the backward pass reads
    }
    const float scale = 1 / std::sqrt(dot(row, row, padded(dim)) / static_cast<float>(dim) + eps);
    for (size_t i = 0; i < padded(dim); i += kLanes) {
      const VF normal = hn::Mul(hn::LoadU(f, row + i), hn::Set(f, scale));
      hn::StoreU(hn::Mul(normal, hn::LoadU(f, w + i)), f, out + i);
    }
    store(type, out, dim, y, r * dim);
  }
}

// With scale = 1 / sqrt(mean(x^2) + eps), n = scale x and g = d_y weight, the gradients are d_x = scale (g - n mean(g
// n)) and d_weight = sum d_y n.
void rms_norm_backward(DType type, const void* d_y, const void* x, const float* weight, float eps, const void* d_sum,
                       void* d_x, float* d_weight, int64_t begin, int64_t end, int64_t dim) {
  const F f;
  const float* w = load(DType::f32, weight, 0, dim, 0);
  float* out = buffer(3, dim);
  for (int64_t r = begin; r < end; ++r) {
    const float* row = load(type, x, r * dim, dim, 1);
    const float* dy = load(type, d_y, r * dim, dim, 2);
    const float* more = d_sum ? load(type, d_sum, r * dim, dim, 4) : nullptr;
    const float scale = 1 / std::sqrt(dot(row, row, padded(dim)) / static_cast<float>(dim) + eps);
    VF mean = hn::Zero(f);
    for (size_t i = 0; i < padded(dim); i += kLanes) {
      const VF g = hn::Mul(hn::LoadU(f, dy + i), hn::LoadU(f, w + i));
      mean = hn::MulAdd(g, hn::LoadU(f, row + i), mean);
    }
    const VF factor = hn::Set(f, cpu::sum_lanes(mean) * scale * scale / static_cast<float>(dim));
    for (size_t i = 0; i < padded(dim); i += kLanes) {
      const VF vx = hn::LoadU(f, row + i), vdy = hn::LoadU(f, dy + i);
      const VF g = hn::Mul(vdy, hn::LoadU(f, w + i));
      VF d = hn::Mul(hn::Set(f, scale), hn::NegMulAdd(vx, factor, g));
      if (more) d = hn::Add(d, hn::LoadU(f, more + i));
      hn::StoreU(d, f, out + i);
      const VF dw = hn::Mul(vdy, hn::Mul(vx, hn::Set(f, scale)));
      if (i + kLanes <= static_cast<size_t>(dim)) {
        hn::StoreU(hn::Add(hn::LoadU(f, d_weight + i), dw), f, d_weight + i);
      } else {
        for (size_t n = i; n < static_cast<size_t>(dim); ++n) d_weight[n] += dy[n] * row[n] * scale;
      }
    }
    store(type, out, dim, d_x, r * dim);
  }
}

HWY_INLINE VF sigmoid(VF x) {
  const F f;
  const VF e = cpu::exp_nonpositive(f, hn::Neg(hn::Abs(x))), one = hn::Set(f, 1.0f);
  return hn::Div(hn::IfThenElse(hn::Lt(x, hn::Zero(f)), e, one), hn::Add(one, e));
}

void swiglu(DType type, const void* gate, int64_t gate_stride, const void* up, int64_t up_stride, void* y,
            int64_t begin, int64_t end, int64_t dim) {
  const F f;
  float* out = buffer(2, dim);
  for (int64_t r = begin; r < end; ++r) {
    const float* g = load(type, gate, r * gate_stride, dim, 0);
    const float* u = load(type, up, r * up_stride, dim, 1);
    for (size_t i = 0; i < padded(dim); i += kLanes) {
      const VF x = hn::LoadU(f, g + i);
      hn::StoreU(hn::Mul(hn::Mul(x, sigmoid(x)), hn::LoadU(f, u + i)), f, out + i);
    }
    store(type, out, dim, y, r * dim);
  }
}

void swiglu_backward(DType type, const void* d_y, const void* gate, int64_t gate_stride, const void* up,
                     int64_t up_stride, void* d_gate, void* d_up, int64_t d_stride, int64_t begin, int64_t end,
                     int64_t dim) {
  const F f;
  float *dg = buffer(3, dim), *du = buffer(4, dim);
  const VF one = hn::Set(f, 1.0f);
  for (int64_t r = begin; r < end; ++r) {
    const float* g = load(type, gate, r * gate_stride, dim, 0);
    const float* u = load(type, up, r * up_stride, dim, 1);
    const float* dy = load(type, d_y, r * dim, dim, 2);
    for (size_t i = 0; i < padded(dim); i += kLanes) {
      const VF x = hn::LoadU(f, g + i), d = hn::LoadU(f, dy + i), s = sigmoid(x);
      hn::StoreU(hn::Mul(d, hn::Mul(x, s)), f, du + i);
      const VF slope = hn::Mul(s, hn::MulAdd(x, hn::Sub(one, s), one));
      hn::StoreU(hn::Mul(hn::Mul(d, hn::LoadU(f, u + i)), slope), f, dg + i);
    }
    store(type, dg, dim, d_gate, r * d_stride);
    store(type, du, dim, d_up, r * d_stride);
  }
}

void rope(DType type, const void* x, int64_t x_offset, int64_t x_stride, const float* cos, const float* sin,
          float direction, int64_t rotary, bool interleaved, void* y, int64_t y_offset, int64_t heads, int64_t dim) {
  const F f;
  const size_t half = static_cast<size_t>(rotary) / 2;
  float* out = buffer(1, dim);
  for (int64_t h = 0; h < heads; ++h) {
    const float* row = load(type, x, x_offset + h * x_stride, dim, 0);
    std::copy(row + rotary, row + dim, out + rotary);
    size_t i = 0;
    for (; !interleaved && i + kLanes <= half; i += kLanes) {
      const VF a = hn::LoadU(f, row + i), b = hn::LoadU(f, row + half + i), c = hn::LoadU(f, cos + i);
      const VF s = hn::Mul(hn::LoadU(f, sin + i), hn::Set(f, direction));
      hn::StoreU(hn::NegMulAdd(b, s, hn::Mul(a, c)), f, out + i);
      hn::StoreU(hn::MulAdd(a, s, hn::Mul(b, c)), f, out + half + i);
    }
    for (; i < half; ++i) {
      const size_t first = interleaved ? 2 * i : i, second = interleaved ? 2 * i + 1 : half + i;
      const float s = sin[i] * direction;
      out[first] = row[first] * cos[i] - row[second] * s;
      out[second] = row[second] * cos[i] + row[first] * s;
    }
    store(type, out, dim, y, y_offset + h * dim);
  }
}

CrossEntropy cross_entropy(float* logits, int64_t vocabulary, int64_t label, float gradient_scale) {
  const F f;
  const size_t n = vocabulary, whole = n / kLanes * kLanes;
  VF largest = hn::Set(f, -INFINITY);
  for (size_t i = 0; i < whole; i += kLanes) largest = hn::Max(largest, hn::LoadU(f, logits + i));
  float top = cpu::max_lanes(largest);
  for (size_t i = whole; i < n; ++i) top = std::max(top, logits[i]);
  const float target = logits[label];
  // The sum of a block is fp32, the sum of the blocks float64: one fp32 sum over 262144 equal terms would have a
  // relative error of 1e-4, because every addition rounds in the same direction.
  constexpr size_t kBlock = 64 * kLanes;
  const VF shift = hn::Set(f, top);
  double blocks = 0;
  float block = 0;
  for (size_t begin = 0; begin < whole; begin += kBlock) {
    blocks += block;
    VF sum = hn::Zero(f);
    for (size_t i = begin; i < std::min(begin + kBlock, whole); i += kLanes) {
      const VF e = cpu::exp_nonpositive(f, hn::Sub(hn::LoadU(f, logits + i), shift));
      if (gradient_scale != 0) hn::StoreU(e, f, logits + i);
      sum = hn::Add(sum, e);
    }
    block = cpu::sum_lanes(sum);
  }
  for (size_t i = whole; i < n; ++i) {
    const float e = std::exp(logits[i] - top);
    if (gradient_scale != 0) logits[i] = e;
    block += e;
  }
  const auto total = static_cast<float>(blocks + block);
  if (gradient_scale != 0) {
    const float scale = gradient_scale / total;
    for (size_t i = 0; i < whole; i += kLanes) {
      hn::StoreU(hn::Mul(hn::LoadU(f, logits + i), hn::Set(f, scale)), f, logits + i);
    }
    for (size_t i = whole; i < n; ++i) logits[i] *= scale;
    logits[label] -= gradient_scale;
  }
  return {target - top - std::log(total), target == top};
}

}  // namespace lazy::ops::rows::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lazy::ops::rows {

HWY_EXPORT(rms_norm);
HWY_EXPORT(rms_norm_backward);
HWY_EXPORT(swiglu);
HWY_EXPORT(swiglu_backward);
HWY_EXPORT(rope);
HWY_EXPORT(cross_entropy);

void rms_norm(DType type, const void* x, const void* residual, void* sum, const float* weight, float eps, void* y,
              int64_t begin, int64_t end, int64_t dim) {
  HWY_DYNAMIC_DISPATCH(rms_norm)(type, x, residual, sum, weight, eps, y, begin, end, dim);
}
void rms_norm_backward(DType type, const void* d_y, const void* x, const float* weight, float eps, const void* d_sum,
                       void* d_x, float* d_weight, int64_t begin, int64_t end, int64_t dim) {
  HWY_DYNAMIC_DISPATCH(rms_norm_backward)(type, d_y, x, weight, eps, d_sum, d_x, d_weight, begin, end, dim);
}
void swiglu(DType type, const void* gate, int64_t gate_stride, const void* up, int64_t up_stride, void* y,
            int64_t begin, int64_t end, int64_t dim) {
  HWY_DYNAMIC_DISPATCH(swiglu)(type, gate, gate_stride, up, up_stride, y, begin, end, dim);
}
void swiglu_backward(DType type, const void* d_y, const void* gate, int64_t gate_stride, const void* up,
                     int64_t up_stride, void* d_gate, void* d_up, int64_t d_stride, int64_t begin, int64_t end,
                     int64_t dim) {
  HWY_DYNAMIC_DISPATCH(swiglu_backward)
  (type, d_y, gate, gate_stride, up, up_stride, d_gate, d_up, d_stride, begin, end, dim);
}
void rope(DType type, const void* x, int64_t x_offset, int64_t x_stride, const float* cos, const float* sin,
          float direction, int64_t rotary, bool interleaved, void* y, int64_t y_offset, int64_t heads, int64_t dim) {
  HWY_DYNAMIC_DISPATCH(rope)
  (type, x, x_offset, x_stride, cos, sin, direction, rotary, interleaved, y, y_offset, heads, dim);
}
CrossEntropy cross_entropy(float* logits, int64_t vocabulary, int64_t label, float gradient_scale) {
  return HWY_DYNAMIC_DISPATCH(cross_entropy)(logits, vocabulary, label, gradient_scale);
}

}  // namespace lazy::ops::rows
#endif
