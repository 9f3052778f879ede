// Test cases for the skinny GEMM (src/ops/cuda/step.h), with and without a fused write to KV-cache pages. They run on
// several emulated GPUs.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "emulator.h"
#include "ops/cuda/step.h"

namespace lazy::ops::cuda {

using Half = __nv_bfloat16;

inline float value(Half x) { return __bfloat162float(x); }
inline float value(__half x) { return __half2float(x); }

template <typename T>
constexpr DType kType = std::is_same_v<T, Half> ? DType::bf16 : DType::f16;

template <typename T = Half>
std::vector<T> random_halves(int64_t size, float deviation, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<T> out(static_cast<size_t>(size));
  for (T& x : out) {
    if constexpr (std::is_same_v<T, __half>) {
      x = __float2half(normal(random));
    } else {
      x = __float2bfloat16(normal(random));
    }
  }
  return out;
}

// Selects the emulated GPU during the lifetime of the object.
class As {
 public:
  explicit As(const emulated::Gpu& gpu) { emulated::gpu = gpu; }
  ~As() { emulated::gpu = before_; }
  As(const As&) = delete;
  As& operator=(const As&) = delete;

 private:
  const emulated::Gpu before_ = emulated::gpu;
};
// The emulated GPUs: one with clusters, one without clusters, and one with little shared memory.
constexpr emulated::Gpu kGpus[] = {{9, 90, 227 << 10}, {8, 80, 163 << 10}, {8, 80, 99 << 10}};

struct Product {
  int64_t rows, in, out;
  bool norm, add, swiglu, wide;
};

template <typename T>
class SkinnyGemmOf {
 public:
  explicit SkinnyGemmOf(const Product& product)
      : p_(product),
        x_(random_halves<T>(p_.rows * p_.in, 1, 1)),
        add_(random_halves<T>(p_.rows * p_.out, 1, 2)),
        W_(random_halves<T>(p_.out * (p_.swiglu ? 2 : 1) * p_.in, 0.05F, 3)) {
    for (const T x : random_halves<T>(p_.in, 0.2F, 4)) norm_.push_back(1 + value(x));
  }

  // Runs the kernels on `rows` rows of x, starting at row `first`. Returns y as fp32.
  std::vector<float> run(int64_t rows, int64_t first = 0) {
    std::vector<float> y(static_cast<size_t>(rows * p_.out));
    std::vector<T> halves(y.size());
    run(rows, first, p_.wide ? static_cast<void*>(y.data()) : halves.data());
    for (size_t n = 0; !p_.wide && n < y.size(); ++n) y[n] = value(halves[n]);
    return y;
  }

  // Runs the kernels on all rows. Returns y rounded to T.
  std::vector<T> rounded() {
    std::vector<T> y(static_cast<size_t>(p_.rows * p_.out));
    run(p_.rows, 0, y.data());
    return y;
  }

  void run_to(const PageTarget& pages) { run(p_.rows, 0, nullptr, pages); }

  // Returns the expected result in float64.
  std::vector<double> expected() const {
    std::vector<double> y;
    for (int64_t row = 0; row < p_.rows; ++row) {
      std::vector<double> h;
      double squares = 0;
      for (int64_t k = row * p_.in; k < (row + 1) * p_.in; ++k) {
        const float x = value(x_[static_cast<size_t>(k)]);
        h.push_back(x);
        squares += double{x} * x;
      }
      const double scale = 1 / std::sqrt(squares / static_cast<double>(p_.in) + 1e-5);
      for (size_t k = 0; p_.norm && k < h.size(); ++k) h[k] *= scale * norm_[k];
      const auto product = [&](int64_t column) {
        double all = 0;
        for (size_t k = 0; k < h.size(); ++k) all += h[k] * value(W_[static_cast<size_t>(column * p_.in) + k]);
        return all;
      };
      for (int64_t column = 0; column < p_.out; ++column) {
        const double gate = product(column);
        y.push_back(p_.swiglu ? gate / (1 + std::exp(-gate)) * product(column + p_.out)
                    : p_.add  ? gate + value(add_[static_cast<size_t>(row * p_.out + column)])
                              : gate);
      }
    }
    return y;
  }

 private:
  void run(int64_t rows, int64_t first, void* y, const PageTarget& pages = {}) {
    SkinnyGemm a{.type = kType<T>};
    a.x = x_.data() + first * p_.in;
    a.W = W_.data();
    a.x_stride = a.in = p_.in;
    a.rows = rows;
    a.out = y ? p_.out : p_.out / 2;
    if (p_.add) a.add = add_.data() + first * p_.out;
    std::vector<T> scaled_x(static_cast<size_t>((rows + 7) / 8 * 8 * p_.in));
    std::vector<float> scales(static_cast<size_t>(rows));
    if (p_.norm) a.norm_weight = norm_.data();
    a.scaled_x = scaled_x.data();
    a.scales = scales.data();
    a.eps = 1e-5F;
    a.swiglu = p_.swiglu;
    a.wide = p_.wide;
    a.y = y;
    a.pages = pages;
    skinny_gemm(a, nullptr);
  }

  Product p_;
  std::vector<T> x_, add_, W_;
  std::vector<float> norm_;
};
using SkinnyGemmProduct = SkinnyGemmOf<Half>;

// Compares one skinny GEMM over all rows with several skinny GEMMs over at most kMaxUngroupedRows rows each. The
// results must be bitwise equal.
template <typename T = Half>
void compare_with_rows_by_themselves(const Product& p) {
  SCOPED_TRACE(testing::Message() << p.rows << " rows of " << p.in << ", " << p.out << " columns, " << p.norm << p.add
                                  << p.swiglu << p.wide << ", " << (std::is_same_v<T, Half> ? "bf16" : "fp16")
                                  << ", shared memory " << emulated::gpu.shared_most);
  SkinnyGemmOf<T> product(p);
  const std::vector<float> found = product.run(p.rows);
  for (int64_t first = 0; first < p.rows; first += kMaxUngroupedRows) {
    const std::vector<float> some = product.run(std::min(p.rows - first, kMaxUngroupedRows), first);
    EXPECT_TRUE(std::equal(some.begin(), some.end(), found.begin() + first * p.out)) << "from row " << first;
  }
}

// Inputs and KV-cache pages for a write of several tokens. Some positions of the tokens are beyond the end of the RoPE
// table.
template <typename T>
struct PagesOf {
  static constexpr int64_t kDim = 24, kTable = 100;
  int64_t heads, kv_heads, pairs, all = heads + 2 * kv_heads;
  std::vector<int64_t> positions, slots;
  std::vector<double> frequency;
  std::vector<float> cosines, sines;
  std::vector<T> q, keys, values;

  PagesOf(int64_t tokens, int64_t heads, int64_t kv_heads, int64_t pairs)
      : heads(heads),
        kv_heads(kv_heads),
        pairs(pairs),
        q(static_cast<size_t>(tokens * heads * kDim)),
        keys(static_cast<size_t>((7 * tokens + 3) * kv_heads * kDim)),
        values(keys.size()) {
    for (int64_t n = 0; n < tokens; ++n) {
      positions.push_back(n % 5 == 3 ? 2000 + n : 33 * n % kTable);
      slots.push_back(7 * (tokens - n) + n % 3);
    }
    for (int64_t n = 0; n < pairs; ++n) frequency.push_back(std::pow(100.0, -static_cast<double>(n) / pairs));
    for (int64_t n = 0; n < kTable * pairs; ++n) {
      const double angle = static_cast<double>(n / pairs) * frequency[static_cast<size_t>(n % pairs)];
      cosines.push_back(static_cast<float>(std::cos(angle)));
      sines.push_back(static_cast<float>(std::sin(angle)));
    }
  }

  PageTarget places(bool interleaved) {
    return {.q = q.data(),
            .keys = keys.data(),
            .values = values.data(),
            .positions = positions.data(),
            .slots = slots.data(),
            .heads = heads,
            .kv_heads = kv_heads,
            .dim = kDim,
            .table = {cosines.data(), sines.data(), frequency.data(), 1, kTable, pairs},
            .interleaved = interleaved};
  }

  // Applies RoPE to q and k and writes k and v to the pages. joint: q, k and v of all heads, with shape (tokens, all,
  // kDim), where all = heads + 2 kv_heads.
  void turn(const std::vector<T>& joint, bool interleaved) { turn(joint, interleaved, {}, nullptr, nullptr); }
  void turn(const std::vector<T>& joint, bool interleaved, const std::vector<int64_t>& sources, T* gathered_keys,
            T* gathered_values) {
    KvCacheWrite a{.type = kType<T>};
    a.q = joint.data();
    a.k = joint.data() + heads * kDim;
    a.v = joint.data() + (heads + kv_heads) * kDim;
    a.q_token = a.k_token = a.v_token = all * kDim;
    a.q_head = a.k_head = a.v_head = kDim;
    a.tokens = static_cast<int64_t>(slots.size());
    a.to = places(interleaved);
    a.sources = sources.data();
    a.rows = static_cast<int64_t>(sources.size());
    a.gathered_keys = gathered_keys;
    a.gathered_values = gathered_values;
    kv_cache_write(a, nullptr);
  }
};

using Pages = PagesOf<Half>;

template <typename T>
std::vector<uint16_t> bits_of(const std::vector<T>& x) {
  std::vector<uint16_t> out;
  for (const T n : x) out.push_back(std::bit_cast<uint16_t>(n));
  return out;
}

// Compares the skinny GEMM with fused RoPE and page write with a skinny GEMM followed by a separate kernel for RoPE and
// the page write. The results must be bitwise equal.
template <typename T>
void compare_with_rotation(int64_t rows, int64_t in, int64_t heads, int64_t kv_heads, int64_t pairs, bool interleaved) {
  SCOPED_TRACE(testing::Message() << rows << " rows of " << in << ", " << heads << " heads, " << pairs
                                  << " pairs, interleaved " << interleaved);
  PagesOf<T> apart(rows, heads, kv_heads, pairs), at_once(rows, heads, kv_heads, pairs);
  SkinnyGemmOf<T> product({rows, in, apart.all * Pages::kDim, true, false, false, false});
  apart.turn(product.rounded(), interleaved);
  product.run_to(at_once.places(interleaved));
  EXPECT_EQ(bits_of(at_once.q), bits_of(apart.q));
  EXPECT_EQ(bits_of(at_once.keys), bits_of(apart.keys));
  EXPECT_EQ(bits_of(at_once.values), bits_of(apart.values));
}

struct PagesShape {
  int64_t rows, in, heads, kv_heads;
};
inline void compare_with_rotations(const PagesShape& shape) {
  const auto& [rows, in, heads, kv_heads] = shape;
  for (const int64_t pairs : {0, 4, 12}) {
    for (const bool interleaved : {false, true}) {
      if (heads > 100 && pairs != 4) continue;  // too slow in the emulator
      compare_with_rotation<Half>(rows, in, heads, kv_heads, pairs, interleaved);
      if (in < 300 && heads < 100) compare_with_rotation<__half>(rows, in, heads, kv_heads, pairs, interleaved);
    }
  }
}

}  // namespace lazy::ops::cuda
