// The fused kernel for all layers of a decode step (src/ops/cuda/fused_decode_layers.cu) must be bitwise equal to the
// separate kernels.
#include <cuda_bf16.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "../device.h"
#include "lazy/decode_step_cuda.h"
#include "ops/cuda/step.h"

namespace lazy::ops::cuda {
namespace {

using Half = __nv_bfloat16;
using kernels::Normalizer;

struct LayersCase {
  int64_t dim, length, pairs;
  Normalizer normalizer;
  bool interleaved = false;
  int64_t window = -1;
  bool alibi = false;
  int64_t hidden = 256, inner = 512;
  double softcap = 0;
};

class LayersOfAStep {
 public:
  explicit LayersOfAStep(const LayersCase& of)
      : c_(of), heads_(256 / of.dim), pages_((of.length + kPage - 1) / kPage + 1) {
    if (pages_ % 7 == 0) ++pages_;
    // Consecutive pages of the table are not adjacent in memory.
    for (int64_t n = 0; n < pages_; ++n) table_.push_back(n * 7 % pages_);
    const int64_t last = c_.length - 1;
    slot_ = {table_[static_cast<size_t>(last / kPage)] * kPage + last % kPage};
    for (int64_t n = 0; n < (last + 1) * c_.pairs; ++n) {
      const double angle = static_cast<double>(n / c_.pairs) * std::pow(0.9, static_cast<double>(n % c_.pairs));
      cosines_.push_back(static_cast<float>(std::cos(angle)));
      sines_.push_back(static_cast<float>(std::sin(angle)));
    }
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      Weights w;
      w.qkv = halves(3 * kHeads * c_.hidden, c_.hidden);
      w.output = halves(c_.hidden * kHeads, kHeads);
      w.gate_up = halves(2 * c_.inner * c_.hidden, c_.hidden);
      w.down = halves(c_.hidden * c_.inner, c_.inner);
      w.keys = halves(pages_ * kPage * kHeads, 1);
      w.values = halves(pages_ * kPage * kHeads, 1);
      w.norms = floats(2 * c_.hidden, 1, 0.2F);
      w.bias = floats(heads_ * kBias, 0, 1);
      w.tau = floats(heads_, -1, 1);
      w.sink = floats(heads_, 0, 1);
      w.slopes = floats(heads_, 0.1F, 0.02F);
      weights_.push_back(std::move(w));
    }
    x_ = halves(c_.hidden, 1);
  }

  // Runs the separate kernels. Returns the residual stream after the last layer, and all pages.
  std::vector<uint16_t> one_by_one() {
    std::vector<Half> x = x_;
    Pools pools(*this);
    for (size_t n = 0; n < kLayers; ++n) {
      const Weights& w = weights_[n];
      std::vector<Half> q(kHeads), attended(kHeads);
      SkinnyGemm heads = product(x, w.qkv, w.norms.data(), 3 * kHeads / 2, nullptr, nullptr);
      heads.pages = places();
      heads.pages.q = q.data();
      heads.pages.keys = pools.keys[n].data();
      heads.pages.values = pools.values[n].data();
      skinny_gemm(heads, nullptr);
      kernels::Decode<float> a = attention(w);
      a.q = {q.data(), kHeads, kHeads, c_.dim, 1};
      a.out = {attended.data(), kHeads, kHeads, c_.dim, 1};
      a.k = {pools.keys[n].data(), kPage * kHeads, kHeads, c_.dim, 1};
      a.v = {pools.values[n].data(), kPage * kHeads, kHeads, c_.dim, 1};
      const kernels::CacheSize cache{pages_ * kPage, pages_};
      const kernels::test::DeviceMemory workspace(decode_step_workspace_cuda(problem(), cache));
      kernels::CudaCall call;
      call.workspace = workspace.get();
      decode_step_cuda(problem(), a, cache, call);
      std::vector<Half> middle(x.size()), activated(static_cast<size_t>(c_.inner)), sum(x.size());
      skinny_gemm(product(attended, w.output, nullptr, c_.hidden, x.data(), middle.data()), nullptr);
      SkinnyGemm gate_up = product(middle, w.gate_up, w.norms.data() + c_.hidden, c_.inner, nullptr, activated.data());
      gate_up.swiglu = true;
      skinny_gemm(gate_up, nullptr);
      skinny_gemm(product(activated, w.down, nullptr, c_.hidden, middle.data(), sum.data()), nullptr);
      x = sum;
    }
    return pools.bits(x);
  }

  // Runs the fused kernel twice. The second run starts with the synchronization flags that the first run has left in
  // memory.
  std::vector<uint16_t> by_layers(int blocks) {
    std::vector<uint16_t> bits;
    std::vector<uint64_t> words;
    for (int time = 0; time < 2; ++time) {
      Pools pools(*this);
      std::vector<FusedDecodeLayer> layers;
      for (size_t n = 0; n < kLayers; ++n) {
        const Weights& w = weights_[n];
        const kernels::Decode<float> a = attention(w);
        layers.push_back({w.qkv.data(), w.output.data(), w.gate_up.data(), w.down.data(), w.norms.data(),
                          w.norms.data() + c_.hidden, pools.keys[n].data(), pools.values[n].data(), a.distance_bias,
                          a.tau, a.sink, a.alibi_slopes});
      }
      std::vector<Half> y(x_.size());
      FusedDecodeLayers p{.layers = layers.data(), .count = kLayers, .problem = problem()};
      p.attention = attention(weights_[0]);
      p.pages = pages_;
      p.to = places();
      p.hidden = c_.hidden;
      p.inner = c_.inner;
      p.eps = 1e-5F;
      p.x = x_.data();
      p.y = y.data();
      p.most_blocks = blocks;
      if (time == 0) words.resize(static_cast<size_t>(fused_decode_sync_words(p)) + 16);
      p.words = words.data() + (16 - reinterpret_cast<uintptr_t>(words.data()) / 8 % 16) % 16;
      fused_decode_layers(p, nullptr);
      const std::vector<uint16_t> now = pools.bits(y);
      EXPECT_TRUE(time == 0 || now == bits);
      bits = now;
    }
    return bits;
  }

 private:
  static constexpr int64_t kLayers = 2, kHeads = 256, kPage = 16, kBias = 70;
  struct Weights {
    std::vector<Half> qkv, output, gate_up, down, keys, values;
    std::vector<float> norms, bias, tau, sink, slopes;
  };
  struct Pools {
    std::vector<std::vector<Half>> keys, values;
    explicit Pools(const LayersOfAStep& of) {
      for (const Weights& w : of.weights_) keys.push_back(w.keys), values.push_back(w.values);
    }
    std::vector<uint16_t> bits(const std::vector<Half>& x) const {
      std::vector<uint16_t> out;
      const auto add = [&](const std::vector<Half>& more) {
        for (const Half n : more) out.push_back(n.bits);
      };
      add(x);
      for (const auto* pools : {&keys, &values}) {
        for (const auto& one : *pools) add(one);
      }
      return out;
    }
  };

  std::vector<Half> halves(int64_t size, int64_t in) {
    std::vector<Half> out;
    for (const float x : floats(size, 0, 1 / std::sqrt(static_cast<float>(in)))) out.push_back(__float2bfloat16(x));
    return out;
  }
  std::vector<float> floats(int64_t size, float mean, float deviation) {
    std::normal_distribution<float> normal(mean, deviation);
    std::vector<float> out(static_cast<size_t>(size));
    for (float& x : out) x = normal(random_);
    return out;
  }
  SkinnyGemm product(const std::vector<Half>& x, const std::vector<Half>& W, const float* norm, int64_t out,
                     const Half* add, Half* y) const {
    SkinnyGemm a{.type = DType::bf16};
    a.x = x.data();
    a.W = W.data();
    a.rows = 1;
    a.x_stride = a.in = static_cast<int64_t>(x.size());
    a.out = out;
    a.eps = 1e-5F;
    a.norm_weight = norm;
    a.add = add;
    a.y = y;
    return a;
  }
  PageTarget places() const {
    PageTarget r{};
    r.positions = &position_;
    r.slots = slot_.data();
    r.heads = r.kv_heads = heads_;
    r.dim = c_.dim;
    r.table = {cosines_.data(), sines_.data(), nullptr, 1, c_.length, c_.pairs};
    r.interleaved = c_.interleaved;
    return r;
  }
  kernels::Problem problem() const {
    kernels::Problem p;
    p.dtype = DType::bf16;
    p.normalizer = c_.normalizer;
    p.batch = p.q_length = 1;
    p.heads = p.kv_heads = heads_;
    p.head_dim = p.value_dim = c_.dim;
    p.scale = 0.125;
    p.causal = true;
    p.window = c_.window;
    p.softcap = c_.softcap;
    if (kernels::traits(c_.normalizer).takes_tau) p.bias_window = kBias;
    return p;
  }
  kernels::Decode<float> attention(const Weights& w) const {
    kernels::Decode<float> a{};
    if (kernels::traits(c_.normalizer).takes_tau) {
      a.tau = w.tau.data();
      a.distance_bias = w.bias.data();
    }
    if (kernels::traits(c_.normalizer).takes_sink) a.sink = w.sink.data();
    if (c_.alibi) a.alibi_slopes = w.slopes.data();
    a.lengths = &c_.length;
    a.block_table = table_.data();
    a.table_width = pages_;
    a.page_size = kPage;
    return a;
  }

  LayersCase c_;
  int64_t heads_, pages_;
  std::mt19937 random_{1};
  int64_t position_ = c_.length - 1;
  std::vector<int64_t> slot_, table_;
  std::vector<float> cosines_, sines_;
  std::vector<Weights> weights_;
  std::vector<Half> x_;
};

TEST(FusedDecodeLayers, FusedKernel_MatchesSeparateKernels) {
  for (const LayersCase& c : {
           LayersCase{64, 600, 32, Normalizer::elastic},
           LayersCase{64, 129, 32, Normalizer::softmax, /*interleaved=*/true},
           LayersCase{64, 1, 16, Normalizer::elastic},
           LayersCase{64, 3000, 0, Normalizer::softmax_sink},
           LayersCase{64, 700, 32, Normalizer::elastic_sink},
           LayersCase{64, 2000, 32, Normalizer::softmax},
           LayersCase{64, 700, 32, Normalizer::softmax, false, /*window=*/250, /*alibi=*/true},
           LayersCase{128, 400, 64, Normalizer::elastic},
           LayersCase{128, 64, 64, Normalizer::softmax, false, -1, false, /*hidden=*/768, /*inner=*/1280},
           LayersCase{64, 600, 32, Normalizer::elastic, false, -1, false, 256, 512, /*softcap=*/0.5},
       }) {
    LayersOfAStep step(c);
    const std::vector<uint16_t> expected = step.one_by_one();
    for (const int blocks : {1, 4}) {
      SCOPED_TRACE(testing::Message() << name(c.normalizer) << ", heads of " << c.dim << ", " << c.length << " keys, "
                                      << c.pairs << " pairs, " << blocks << " blocks");
      EXPECT_TRUE(step.by_layers(blocks) == expected);
    }
  }
}

}  // namespace
}  // namespace lazy::ops::cuda
