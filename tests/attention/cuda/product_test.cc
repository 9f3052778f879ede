// Compares every CUDA kernel with the float64 reference over all combinations of shapes and options. There is one test
// for every kernel, type, normalizer and pair of sequence lengths. Combinations that a kernel does not support are
// omitted.
#include <gtest/gtest.h>

#include <algorithm>

#include "run_cuda.h"

namespace lazy::kernels::test {

namespace {

using Parameter = std::tuple<CudaKernel, DType, Normalizer, std::vector<int64_t>>;

std::string test_name(const testing::TestParamInfo<Parameter>& info) {
  const auto& [kernel, dtype, normalizer, lengths] = info.param;
  return std::string(name(kernel)) + "_" + name(dtype) + "_" + name(normalizer) + "_" + std::to_string(lengths[0]);
}

std::vector<int32_t> documents(int64_t total, std::initializer_list<int> shares) {
  std::vector<int32_t> cumulative{0};
  int sum = 0, so_far = 0;
  for (int share : shares) sum += share;
  for (int share : shares) cumulative.push_back(static_cast<int32_t>(total * (so_far += share) / sum));
  return cumulative;
}

std::vector<Shape> shapes(CudaKernel kernel, DType dtype, Normalizer normalizer, int64_t length) {
  std::vector<Shape> all;
  const bool elastic = traits(normalizer).takes_tau;
  std::vector<std::pair<int64_t, int64_t>> listed;  // the kernel's head sizes for this normalizer
  for (const KernelEntry& entry : kTensorCoreKernels) {
    if (entry.kernel == kernel && entry.family == traits(normalizer).family) {
      listed.emplace_back(entry.head_size, entry.head_size);
    }
  }
  // Put the head sizes that every family supports first, so that the selection of shapes below does not depend on the
  // order of the table.
  std::stable_partition(listed.begin(), listed.end(), [](auto dims) { return dims.first == 64 || dims.first == 128; });
  // A softpick row with one key has weight e / (e + 1e-8). Its gradient is the rounding error of one minus this weight,
  // and a problem that consists only of such rows has no other gradient. Ties and single rows are covered by property
  // tests.
  const int64_t narrow = normalizer == Normalizer::softpick ? 2 : 1;
  const std::vector<std::pair<int64_t, int64_t>> dims =
      kernel == CudaKernel::plain
          ? std::vector<std::pair<int64_t, int64_t>>{{64, 64}, {40, 24}, {128, 96}, {1, 256}, {256, 3}}
      : kernel == CudaKernel::hopper && length > 111 && length <= 256
          ? std::vector<std::pair<int64_t, int64_t>>{{64, 64}}  // the single-pass forward has only head size 64
          : listed;
  for (int64_t cached : {0, 37, -20}) {
    if (length + cached < narrow) continue;
    for (auto [heads, kv_heads] : {std::pair{2, 2}, std::pair{4, 2}, std::pair{3, 1}}) {
      for (int64_t window : {int64_t{-1}, narrow, int64_t{50}}) {
        for (int64_t bias_window : {0, 1, 16, 600}) {
          for (double tau : {-30.0, -1.0, 0.0, 0.5}) {
            if (!elastic && tau != -1.0) continue;
            for (bool causal : {true, false}) {
              if (kernel == CudaKernel::hopper && !causal && bias_window > 0) continue;
              for (auto [head_dim, value_dim] : dims) {
                Shape s;
                s.dtype = dtype;
                s.normalizer = normalizer;
                s.q_length = length;
                s.k_length = length + cached;
                s.heads = heads;
                s.kv_heads = kv_heads;
                s.window = window;
                s.bias_window = bias_window;
                s.tau = tau;
                s.causal = causal;
                s.head_dim = head_dim;
                s.value_dim = value_dim;
                s.batch = 1 + all.size() % 2;
                s.alibi = all.size() % 5 == 0 && kernel != CudaKernel::hopper;
                s.layout = static_cast<Layout>(all.size() % (kernel == CudaKernel::plain ? 3 : 2));
                s.score_scale = all.size() % 7 == 3 ? 40 : 1;
                s.offset = all.size() % 11 == 6 ? Offset::constant : Offset::per_visible;
                if (all.size() % 3 == 1 && length > 2) {
                  s.batch = 1;
                  s.cu_q = documents(s.q_length, {3, 0, 1, 5});
                  s.cu_k = documents(s.k_length, {2, 1, 0, 6});
                }
                all.push_back(s);
              }
            }
          }
        }
      }
    }
  }
  // Every stride-th combination is tested. The stride has no common factor with the number of values of any option, so
  // that all pairs of values of two options still occur.
  const size_t stride = length <= 111 ? 101 : length <= 256 ? 157 : length <= 513 ? 389 : 1201;
  std::vector<Shape> chosen;
  for (size_t n = static_cast<size_t>(length) % stride; n < all.size(); n += elastic ? stride : stride / 2 + 2) {
    chosen.push_back(all[n]);
  }
  if (chosen.empty()) chosen.push_back(all[0]);
  return chosen;
}

class Cuda : public testing::TestWithParam<Parameter> {
 protected:
  void TearDown() override { current_run() = {}; }
};

TEST_P(Cuda, MatchesReference) {
  if (!has_gpu()) GTEST_SKIP() << "no NVIDIA GPU";
  const auto [kernel, dtype, normalizer, lengths] = GetParam();
  Shape usual;
  usual.dtype = dtype;
  usual.normalizer = normalizer;
  usual.head_dim = usual.value_dim = 64;
  const std::string unmet = unmet_condition_cuda(make_problem(usual), kernel);
  if (unmet.find("compute capability") != std::string::npos) GTEST_SKIP() << unmet;
  current_run() = {.kernel = kernel};
  TwoReferences comparison;
  uint64_t seed = 1;
  for (int64_t length : lengths) {
    for (const Shape& shape : shapes(kernel, dtype, normalizer, length)) {
      ASSERT_EQ(unmet_condition_cuda(make_problem(shape), kernel), "") << shape.text();
      current_run().deterministic = seed % 2;
      current_run().score_stats = seed / 2 % 2;  // tests the instantiations with and without score_stats
      const Inputs inputs = make_inputs(shape, seed++);
      comparison.add(shape, inputs, run_cuda(shape, inputs));
      if (HasFailure()) return;
    }
  }
  comparison.check();
}

class CudaAliveSum : public testing::TestWithParam<std::tuple<CudaKernel, DType, Normalizer, int64_t, int64_t>> {};

// Tests the backward of elastic and elastic_sink that computes the row sums of the softmax gradient from d_out . out
// and d_out . alive_sum, where alive_sum is the sum of the rows of V with nonzero weight. The second reference also
// rounds out, alive_sum and the weights in out.
TEST_P(CudaAliveSum, MatchesReference) {
  if (!has_gpu()) GTEST_SKIP() << "no NVIDIA GPU";
  const auto [kernel, dtype, normalizer, length, head_dim] = GetParam();
  CudaRun& run = current_run();
  run = {.kernel = kernel, .alive_sum = true};
  CudaCall call;
  call.kernel = run.kernel;
  TwoReferences comparison(/*tensor_cores=*/true);
  uint64_t seed = 1;
  for (Shape shape : shapes(kernel, dtype, normalizer, length)) {
    shape.head_dim = shape.value_dim = head_dim;
    const std::string unmet = unmet_condition_cuda(make_problem(shape), kernel);
    if (unmet.find("compute capability") != std::string::npos) GTEST_SKIP() << unmet;
    ASSERT_TRUE(writes_alive_sum_cuda(make_problem(shape), call)) << shape.text();
    shape.rounded_sums = true;
    run.stats_apart = seed % 2;
    const Inputs inputs = make_inputs(shape, seed++);
    comparison.add(shape, inputs, run_cuda(shape, inputs));
    if (HasFailure()) break;
  }
  run = {};
  comparison.check();
}

std::string alive_sum_name(const testing::TestParamInfo<CudaAliveSum::ParamType>& info) {
  const auto& [kernel, dtype, normalizer, length, head_dim] = info.param;
  return std::string(name(dtype)) + "_" + name(normalizer) + "_" + std::to_string(length) + "_" +
         std::to_string(head_dim);
}

constexpr Normalizer kWithTau[] = {Normalizer::elastic, Normalizer::elastic_sink};

INSTANTIATE_TEST_SUITE_P(Hopper, CudaAliveSum,
                         testing::Combine(testing::Values(CudaKernel::hopper), testing::Values(DType::bf16, DType::f16),
                                          testing::ValuesIn(kWithTau), testing::Values(513, 777, 1000),
                                          testing::Values(64, 96, 128)),
                         alive_sum_name);

INSTANTIATE_TEST_SUITE_P(Portable, CudaAliveSum,
                         testing::Combine(testing::Values(CudaKernel::portable),
                                          testing::Values(DType::bf16, DType::f16), testing::ValuesIn(kWithTau),
                                          testing::Values(400, 513), testing::Values(64, 96, 128)),
                         alive_sum_name);

// Returns the normalizers for whose family the kernel has an instantiation.
std::vector<Normalizer> served(CudaKernel kernel) {
  std::vector<Normalizer> list;
  for (const NormalizerTraits& t : kNormalizers) {
    const bool found = std::any_of(std::begin(kTensorCoreKernels), std::end(kTensorCoreKernels),
                                   [&](const KernelEntry& e) { return e.kernel == kernel && e.family == t.family; });
    if (found) list.push_back(t.normalizer);
  }
  return list;
}

const auto kLengths =
    testing::Values(std::vector<int64_t>{1, 2}, std::vector<int64_t>{63, 111}, std::vector<int64_t>{513, 1000});

INSTANTIATE_TEST_SUITE_P(Plain, Cuda,
                         testing::Combine(testing::Values(CudaKernel::plain),
                                          testing::Values(DType::f32, DType::bf16, DType::f16),
                                          testing::ValuesIn(kAllNormalizers), kLengths),
                         test_name);

INSTANTIATE_TEST_SUITE_P(Portable, Cuda,
                         testing::Combine(testing::Values(CudaKernel::portable),
                                          testing::Values(DType::bf16, DType::f16),
                                          testing::ValuesIn(served(CudaKernel::portable)), kLengths),
                         test_name);

INSTANTIATE_TEST_SUITE_P(Hopper, Cuda,
                         testing::Combine(testing::Values(CudaKernel::hopper), testing::Values(DType::bf16, DType::f16),
                                          testing::ValuesIn(served(CudaKernel::hopper)), kLengths),
                         test_name);

// With at most 256 keys, the Hopper forward of elastic and elastic_sink computes the scores in a single pass over the
// keys.
INSTANTIATE_TEST_SUITE_P(HopperSinglePass, Cuda,
                         testing::Combine(testing::Values(CudaKernel::hopper), testing::Values(DType::bf16, DType::f16),
                                          testing::ValuesIn(kWithTau),
                                          testing::Values(std::vector<int64_t>{129, 200},
                                                          std::vector<int64_t>{219, 256})),
                         test_name);

}  // namespace

}  // namespace lazy::kernels::test
