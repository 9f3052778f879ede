// Test tensors: values in float64, and a copy in any element type and memory layout for the kernels under test.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "attention/cpu/convert.h"
#include "lazy/attention.h"

namespace lazy::kernels::test {

inline double round_to(DType type, double x) {
  switch (type) {
    case DType::f64:
      return x;
    case DType::f32:
      return static_cast<float>(x);
    case DType::bf16:
      return cpu::f32_from_bf16(cpu::bf16_from_f32(static_cast<float>(x)));
    case DType::f16:
      return cpu::f32_from_f16(cpu::f16_from_f32(static_cast<float>(x)));
  }
  return x;
}

// Maximum relative error of rounding one number to the type.
inline double unit_roundoff(DType type) {
  switch (type) {
    case DType::f64:
      return 0x1p-53;
    case DType::f32:
      return 0x1p-24;
    case DType::bf16:
      return 0x1p-8;
    case DType::f16:
      return 0x1p-11;
  }
  return 0;
}

// A contiguous float64 tensor of shape (batch, tokens, heads, dim).
struct Tensor {
  int64_t batch = 0, tokens = 0, heads = 0, dim = 0;
  std::vector<double> data;
  Tensor() = default;
  Tensor(int64_t b, int64_t t, int64_t h, int64_t d) : batch(b), tokens(t), heads(h), dim(d), data(b * t * h * d) {}
  double* row(int64_t b, int64_t t, int64_t h) { return data.data() + ((b * tokens + t) * heads + h) * dim; }
  const double* row(int64_t b, int64_t t, int64_t h) const {
    return data.data() + ((b * tokens + t) * heads + h) * dim;
  }
  ConstView view() const { return {data.data(), tokens * heads * dim, heads * dim, dim, 1}; }
  View view() { return {data.data(), tokens * heads * dim, heads * dim, dim, 1}; }
};

inline Tensor random_tensor(int64_t b, int64_t t, int64_t h, int64_t d, DType type, double scale,
                            std::mt19937_64& random) {
  Tensor tensor(b, t, h, d);
  std::normal_distribution<double> normal;
  for (double& x : tensor.data) x = round_to(type, scale * normal(random));
  return tensor;
}

// Order of the axes in memory: (batch, tokens, heads, dim); (batch, heads, tokens, dim); and (batch, tokens, heads, 2
// dim) with every second element unused.
enum class Layout { tokens_first, heads_first, strided_dims };

// Memory that is passed to a kernel, in the given type and layout. All elements are initialized to NaN.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Tensor& like, DType type, Layout layout) : type_(type), shape_(like) {
    shape_.data.clear();
    const int64_t step = layout == Layout::strided_dims ? 2 : 1;
    size_ = like.batch * like.tokens * like.heads * like.dim * step;
    bytes_.assign((size_ + 1) * (type == DType::f32 ? 4 : 2), 0xFF);  // all bits one is NaN in every type
    view_.data = bytes_.data();
    view_.dim = step;
    view_.batch = like.tokens * like.heads * like.dim * step;
    view_.token = layout == Layout::heads_first ? like.dim : like.heads * like.dim * step;
    view_.head = layout == Layout::heads_first ? like.tokens * like.dim : like.dim * step;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  View view() { return view_; }
  ConstView const_view() const { return {view_.data, view_.batch, view_.token, view_.head, view_.dim}; }

  void fill(const Tensor& from) {
    each(
        [&](int64_t offset, double& value) {
          if (type_ == DType::f32) reinterpret_cast<float*>(bytes_.data())[offset] = static_cast<float>(value);
          if (type_ == DType::bf16) half()[offset] = cpu::bf16_from_f32(static_cast<float>(value));
          if (type_ == DType::f16) half()[offset] = cpu::f16_from_f32(static_cast<float>(value));
        },
        const_cast<Tensor&>(from));
  }
  Tensor read() {
    Tensor result(shape_.batch, shape_.tokens, shape_.heads, shape_.dim);
    each(
        [&](int64_t offset, double& value) {
          if (type_ == DType::f32) value = reinterpret_cast<float*>(bytes_.data())[offset];
          if (type_ == DType::bf16) value = cpu::f32_from_bf16(half()[offset]);
          if (type_ == DType::f16) value = cpu::f32_from_f16(half()[offset]);
        },
        result);
    return result;
  }

 private:
  uint16_t* half() { return reinterpret_cast<uint16_t*>(bytes_.data()); }
  template <typename Function>
  void each(const Function& function, Tensor& tensor) {
    for (int64_t b = 0; b < tensor.batch; ++b) {
      for (int64_t t = 0; t < tensor.tokens; ++t) {
        for (int64_t h = 0; h < tensor.heads; ++h) {
          for (int64_t d = 0; d < tensor.dim; ++d) {
            function(b * view_.batch + t * view_.token + h * view_.head + d * view_.dim, tensor.row(b, t, h)[d]);
          }
        }
      }
    }
  }

  DType type_ = DType::f32;
  Tensor shape_;
  int64_t size_ = 0;
  std::vector<uint8_t> bytes_;
  View view_;
};

}  // namespace lazy::kernels::test
