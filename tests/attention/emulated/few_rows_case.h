// Cases of products of few rows (src/ops/cuda/step.h) and of their way to pages.
#pragma once
#include <cuda_bf16.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "ops/cuda/step.h"

namespace lazy::ops::cuda {

using Half = __nv_bfloat16;

inline float value(Half x) { return __bfloat162float(x); }

inline std::vector<Half> random_halves(int64_t size, float deviation, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<Half> out(static_cast<size_t>(size));
  for (Half& x : out) x = __float2bfloat16(normal(random));
  return out;
}

struct Product {
  int64_t rows, in, out;
  bool norm, add, swiglu, wide;
};

class FewRowsProduct {
 public:
  explicit FewRowsProduct(const Product& product)
      : p_(product),
        x_(random_halves(p_.rows * p_.in, 1, 1)),
        add_(random_halves(p_.rows * p_.out, 1, 2)),
        W_(random_halves(p_.out * (p_.swiglu ? 2 : 1) * p_.in, 0.05F, 3)) {
    for (const Half x : random_halves(p_.in, 0.2F, 4)) norm_.push_back(1 + value(x));
  }

  // By the kernels, of `rows` rows from `first` on.
  std::vector<float> run(int64_t rows, int64_t first = 0) {
    std::vector<float> y(static_cast<size_t>(rows * p_.out));
    std::vector<Half> halves(y.size());
    run(rows, first, p_.wide ? static_cast<void*>(y.data()) : halves.data());
    for (size_t n = 0; !p_.wide && n < y.size(); ++n) y[n] = value(halves[n]);
    return y;
  }

  // All rows, rounded.
  std::vector<Half> rounded() {
    std::vector<Half> y(static_cast<size_t>(p_.rows * p_.out));
    run(p_.rows, 0, y.data());
    return y;
  }

  void run_to(const ToPages& pages) { run(p_.rows, 0, nullptr, pages); }

  // In float64.
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
  void run(int64_t rows, int64_t first, void* y, const ToPages& pages = {}) {
    FewRows a{.type = DType::bf16};
    a.x = x_.data() + first * p_.in;
    a.W = W_.data();
    a.x_stride = a.in = p_.in;
    a.rows = rows;
    a.out = y ? p_.out : p_.out / 2;
    if (p_.add) a.add = add_.data() + first * p_.out;
    std::vector<Half> weighed(static_cast<size_t>((rows + 7) / 8 * 8 * p_.in));
    std::vector<float> scales(static_cast<size_t>(rows));
    if (p_.norm) a.norm_weight = norm_.data();
    a.weighed = weighed.data();
    a.scales = scales.data();
    a.eps = 1e-5F;
    a.swiglu = p_.swiglu;
    a.wide = p_.wide;
    a.y = y;
    a.pages = pages;
    few_rows(a, nullptr);
  }

  Product p_;
  std::vector<Half> x_, add_, W_;
  std::vector<float> norm_;
};

// Pages for tokens' keys. Some tokens stand beyond the table of angles.
struct Pages {
  static constexpr int64_t kDim = 24, kTable = 100;
  int64_t heads, kv_heads, pairs, all = heads + 2 * kv_heads;
  std::vector<int64_t> positions, slots;
  std::vector<double> frequency;
  std::vector<float> cosines, sines;
  std::vector<Half> q, keys, values;

  Pages(int64_t tokens, int64_t heads, int64_t kv_heads, int64_t pairs)
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

  ToPages places(bool interleaved) {
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

  // joint: (tokens, all, kDim).
  void turn(const std::vector<Half>& joint, bool interleaved) {
    RopeToPages a{.type = DType::bf16};
    a.q = joint.data();
    a.k = joint.data() + heads * kDim;
    a.v = joint.data() + (heads + kv_heads) * kDim;
    a.q_token = a.k_token = a.v_token = all * kDim;
    a.q_head = a.k_head = a.v_head = kDim;
    a.tokens = static_cast<int64_t>(slots.size());
    a.to = places(interleaved);
    rope_to_pages(a, nullptr);
  }
};

inline std::vector<uint16_t> bits_of(const std::vector<Half>& x) {
  std::vector<uint16_t> out;
  for (const Half n : x) out.push_back(n.bits);
  return out;
}

// A product's bits are those of few enough rows to be made by themselves.
inline void expect_rows_by_themselves(const Product& p) {
  SCOPED_TRACE(testing::Message() << p.rows << " rows of " << p.in << ", " << p.out << " columns, norm " << p.norm
                                  << ", SwiGLU " << p.swiglu);
  FewRowsProduct product(p);
  const std::vector<float> found = product.run(p.rows);
  for (int64_t first = 0; first < p.rows; first += kRowsByThemselves) {
    const std::vector<float> some = product.run(std::min(p.rows - first, kRowsByThemselves), first);
    EXPECT_TRUE(std::equal(some.begin(), some.end(), found.begin() + first * p.out)) << "from row " << first;
  }
}

struct PagesShape {
  int64_t rows, in, heads, kv_heads;
};
// Bit for bit what a product and a rotation behind it give.
inline void expect_pages(const PagesShape& shape) {
  const auto& [rows, in, heads, kv_heads] = shape;
  for (const int64_t pairs : {0, 4, 12}) {
    for (const bool interleaved : {false, true}) {
      if (heads > 100 && pairs != 4) continue;  // takes long here
      SCOPED_TRACE(testing::Message() << rows << " rows of " << in << ", " << heads << " heads, " << pairs
                                      << " pairs, interleaved " << interleaved);
      Pages apart(rows, heads, kv_heads, pairs), at_once(rows, heads, kv_heads, pairs);
      FewRowsProduct product({rows, in, apart.all * Pages::kDim, true, false, false, false});
      apart.turn(product.rounded(), interleaved);
      product.run_to(at_once.places(interleaved));
      EXPECT_EQ(bits_of(at_once.q), bits_of(apart.q));
      EXPECT_EQ(bits_of(at_once.keys), bits_of(apart.keys));
      EXPECT_EQ(bits_of(at_once.values), bits_of(apart.values));
    }
  }
}

}  // namespace lazy::ops::cuda
