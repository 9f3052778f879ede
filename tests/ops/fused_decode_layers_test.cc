// Tests on a GPU of the fused kernel that computes all layers of a decode step. It must be bitwise equal to the
// separate kernels.
#include "ops/fused_decode_layers.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "model/own_stream.h"
#include "ops/decode.h"
#include "ops/device.h"
#include "ops/normalizers.h"
#include "ops/recorder.h"
#include "ops/skinny_gemm.h"

namespace lazy::ops {
namespace {

using test::test_device;

struct LayersCase {
  int64_t heads, dim, longest, layers;
  const char* normalizer;
};

at::Tensor layer_random(at::IntArrayRef sizes, uint64_t seed, at::ScalarType type = at::kBFloat16,
                        double deviation = 1) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return (at::randn(sizes, generator, at::TensorOptions().dtype(at::kFloat)) * deviation).to(type).to(test_device());
}

// Layers with random weights. The addresses of their tensors do not change, so that a captured CUDA graph can be
// replayed.
class LayersOfAStep {
 public:
  explicit LayersOfAStep(const LayersCase& of) : c_(of), pages_((c_.longest + kPage - 1) / kPage) {
    const auto numbers = at::TensorOptions().dtype(at::kLong).device(test_device());
    if (pages_ % 7 == 0) ++pages_;
    // Consecutive pages of the table are not adjacent in memory.
    table_ = (at::arange(pages_, at::kLong) * 7 % pages_).unsqueeze(0);
    in_.x = layer_random({1, kHidden}, 1);
    in_.lengths = at::zeros({1}, numbers);
    in_.block_table = table_.to(test_device());
    in_.eps = 1e-5;
    in_.words = &words_;
    PagePlaces pages;
    pages.slots = at::zeros({1}, numbers);
    pages.rope_base = 10000;
    pages.rope.positions = at::zeros({1, 1}, numbers);
    pages.longest = pages_ * kPage;
    for (int64_t n = 0; n < c_.layers; ++n) {
      uint64_t seed = static_cast<uint64_t>(20 * n);
      const auto matrix = [&](int64_t out, int64_t in) {
        return layer_random({out, in}, ++seed, at::kBFloat16, 1 / std::sqrt(static_cast<double>(in)));
      };
      FusedDecodeLayer l;
      l.heads = c_.heads;
      l.qkv = matrix(3 * c_.heads * c_.dim, kHidden);
      l.output = matrix(kHidden, c_.heads * c_.dim);
      l.gate_up = matrix(2 * kInner, kHidden);
      l.down = matrix(kHidden, kInner);
      l.norm = 1 + layer_random({kHidden}, ++seed, at::kFloat, 0.2);
      l.mlp_norm = 1 + layer_random({kHidden}, ++seed, at::kFloat, 0.2);
      l.attention.options.normalizer = c_.normalizer;
      const NormalizerTraits& normalizer = kernels::traits(normalizer_from_name(c_.normalizer).value());
      if (normalizer.takes_tau) {
        l.attention.distance_bias = layer_random({c_.heads, 512}, ++seed, at::kFloat);
        l.attention.tau = layer_random({c_.heads}, ++seed, at::kFloat) - 1;
      }
      if (normalizer.takes_sink) {
        l.attention.options.sink = layer_random({c_.heads}, ++seed, at::kFloat);
      }
      l.pages = pages;
      l.pages.keys = layer_random({pages_, kPage, c_.heads, c_.dim}, ++seed);
      l.pages.values = layer_random({pages_, kPage, c_.heads, c_.dim}, ++seed);
      in_.layers.push_back(l);
    }
  }

  const FusedDecodeLayers& inputs() const { return in_; }
  // Sets the input of a different decode step: a new token, in a sequence of a different length.
  void set(int64_t step) {
    const int64_t length = step % 2 == 0 ? c_.longest - step : 1 + (97 * step + 30) % c_.longest;
    const PagePlaces& pages = in_.layers.front().pages;  // all layers share these tensors
    in_.lengths.fill_(length);
    pages.rope.positions.fill_(length - 1);
    pages.slots.fill_(table_[0][(length - 1) / kPage].item<int64_t>() * kPage + (length - 1) % kPage);
    in_.x.copy_(layer_random({1, kHidden}, static_cast<uint64_t>(1000 + step)));
  }
  void set_pages(const std::vector<at::Tensor>& pages) {
    for (size_t n = 0; n < in_.layers.size(); ++n) {
      in_.layers[n].pages.keys.copy_(pages[2 * n]);
      in_.layers[n].pages.values.copy_(pages[2 * n + 1]);
    }
  }
  std::vector<at::Tensor> pages() const {
    std::vector<at::Tensor> out;
    for (const FusedDecodeLayer& l : in_.layers) out.insert(out.end(), {l.pages.keys.clone(), l.pages.values.clone()});
    return out;
  }

  at::Tensor one_by_one() const {
    at::Tensor x = in_.x;
    for (const FusedDecodeLayer& l : in_.layers) {
      const at::Tensor q = skinny_gemm_kv_cache_write({.x = x, .norm_weight = l.norm, .eps = in_.eps}, l.qkv, l.pages);
      const at::Tensor heads =
          std::get<0>(decode(q, l.pages.keys, l.pages.values, in_.lengths, l.attention.distance_bias, l.attention.tau,
                             l.attention.options, in_.block_table, {}, /*invariant=*/true));
      x = skinny_gemm({.x = heads.view({1, -1}), .add = x}, l.output);
      const at::Tensor inner =
          skinny_gemm({.x = x, .norm_weight = l.mlp_norm, .eps = in_.eps}, l.gate_up, /*swiglu=*/true);
      x = skinny_gemm({.x = inner, .add = x}, l.down);
    }
    return x;
  }

 private:
  static constexpr int64_t kHidden = 1024, kInner = 2816, kPage = 16;
  LayersCase c_;
  int64_t pages_;
  at::Tensor table_;
  SyncFlags words_;
  FusedDecodeLayers in_;
};

// The kernel is launched once. Then it is captured in a CUDA graph, which is replayed with different inputs.
TEST(FusedDecodeLayersGpu, FusedKernel_MatchesSeparateKernels) {
  if (!test_device().is_cuda()) GTEST_SKIP() << "needs a GPU (set LAZY_TEST_DEVICE=cuda)";
  for (const LayersCase& c : {LayersCase{16, 64, 1000, 24, "elastic"}, LayersCase{16, 64, 1000, 4, "softmax"},
                              LayersCase{16, 64, 4000, 4, "softmax"}, LayersCase{8, 128, 5000, 2, "elastic"},
                              LayersCase{8, 128, 300, 2, "softmax_sink"}, LayersCase{16, 64, 1000, 4, "elastic_sink"},
                              LayersCase{16, 64, 40000, 1, "elastic"}, LayersCase{16, 64, 20000, 1, "softmax"},
                              LayersCase{4, 64, 50, 33, "softmax"}}) {
    SCOPED_TRACE(::testing::Message() << c.normalizer << ", " << c.heads << " heads of " << c.dim << ", " << c.longest
                                      << " tokens, " << c.layers << " layers");
    const OwnStream stream(test_device());
    LayersOfAStep step(c);
    step.set(0);
    std::optional<at::Tensor> found = fused_decode_layers(step.inputs());
    if (!found) GTEST_SKIP() << "needs a GPU of compute capability 9";
    const auto again = make_recorder(test_device())->record([&] { found = fused_decode_layers(step.inputs()); });
    for (int64_t n = 0; n < 8; ++n) {
      const std::vector<at::Tensor> before = step.pages();
      step.set(n);
      again();
      const std::vector<at::Tensor> after = step.pages();
      step.set_pages(before);
      const at::Tensor x = step.one_by_one();
      const std::vector<at::Tensor> expected = step.pages();
      EXPECT_TRUE(at::equal(*found, x)) << "step " << n;
      for (size_t i = 0; i < after.size(); ++i) EXPECT_TRUE(at::equal(after[i], expected[i])) << "step " << n;
    }
  }
}

}  // namespace
}  // namespace lazy::ops
