// Tests full sharding, where the weights of a model are divided among the ranks: its gradients and its memory use.
// Ranks are threads of this process.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "core/error.h"
#include "distributed/data_parallel.h"
#include "model/forward_options.h"
#include "model/language_model.h"
#include "train/counting_allocator.h"
#include "train/memory_estimate.h"
#include "train/optimizer.h"
#include "train/ranks.h"

namespace lazy::train {
namespace {

ModelConfig small_model(bool tied) {
  ModelConfig c{.vocab_size = 67,
                .hidden_size = 48,
                .num_layers = 3,
                .attention = {.num_heads = 3, .num_kv_heads = 1, .head_dim = 16},
                .mlp = {.intermediate_size = 80}};
  c.attention.normalizer = Normalizer::elastic;
  c.attention.distance_bias_window = 9;
  c.tie_embeddings = tied;
  return c;
}

at::Tensor tokens(int64_t seed, int64_t batch, int64_t length, int64_t vocabulary) {
  return at::remainder(at::arange(batch * length, at::kLong) * (2 * seed + 7) + seed, vocabulary).view({batch, length});
}

// All ranks use the same two micro-batches. The sum of the gradients over two ranks is therefore exactly twice the
// gradient of one process.
class Gradients : public ::testing::TestWithParam<std::tuple<const char*, bool, bool>> {};

TEST_P(Gradients, MatchWholeModel) {
  const auto [checkpointing, bf16, tied] = GetParam();
  as_ranks(2, [&, checkpointing = checkpointing, bf16 = bf16, tied = tied](Communicator& ranks) {
    const auto make = [&] {
      LanguageModel model(small_model(tied), 3);
      model.set_compute_dtype(bf16 ? at::kBFloat16 : at::kFloat);
      model.set_checkpointing(checkpointing_from(checkpointing));
      return model;
    };
    LanguageModel whole = make(), sharded = make();
    DataParallel parallel(sharded, ranks, Sharding::full_shard);
    ASSERT_TRUE(parallel.fully_sharded());
    AdamW optimizer(parallel.optimizer_parameters(), {.lr = 1e-2}), reference(whole.parameters(), {.lr = 1e-2});
    for (int step = 0; step < 3; ++step) {
      for (int micro = 0; micro < 2; ++micro) {
        const at::Tensor ids = tokens(2 * step + micro, 2, 24, 67);
        at::Tensor loss = sharded.loss(ids, ids), expected = whole.loss(ids, ids);
        EXPECT_EQ(loss.item<float>(), expected.item<float>()) << step;
        parallel.begin_backward(micro == 1);
        loss.backward();
        expected.backward();
      }
      parallel.finish_gradients();
      const std::map<std::string, at::Tensor> by_name(whole.parameters().begin(), whole.parameters().end());
      for (const TensorShard& shard : parallel.shards()) {
        const at::Tensor wanted = 2 * by_name.at(shard.name).grad().reshape({-1}).slice(0, shard.begin, shard.end);
        ASSERT_TRUE(at::equal(shard.tensor.grad(), wanted)) << shard.name << " step " << step;
        EXPECT_GT(wanted.abs().max().item<float>(), 0) << shard.name;
        at::Tensor(shard.tensor).mutable_grad() = wanted / 2;
      }
      optimizer.step(1e-2, 1, 0);
      reference.step(1e-2, 1, 0);
      parallel.weights_updated();
      parallel.zero_grad();
      // AdamW uses vector instructions, and scalar code for the remaining elements, which may round differently. The
      // weights of the whole model are copied to the shards, so that the next step starts from identical values.
      for (const TensorShard& shard : parallel.shards()) {
        const at::NoGradGuard no_grad;
        const at::Tensor now = by_name.at(shard.name).detach().view({-1}).slice(0, shard.begin, shard.end);
        ASSERT_TRUE(at::allclose(shard.tensor, now, 4 * std::numeric_limits<float>::epsilon(), 1e-9)) << shard.name;
        at::Tensor(shard.tensor).copy_(now);
      }
      const at::NoGradGuard no_grad;
      const at::Tensor ids = tokens(step, 3, 17, 67);
      EXPECT_EQ(sharded.loss(ids, ids).item<float>(), whole.loss(ids, ids).item<float>()) << "after step " << step;
      EXPECT_TRUE(at::equal(sharded.tau(1), whole.tau(1)));
      EXPECT_TRUE(at::equal(sharded.logits(sharded.forward(ids).hidden), whole.logits(whole.forward(ids).hidden)));
    }
    const auto collected = parallel.gather_full_weights(sharded.stored());
    ASSERT_EQ(collected.size(), ranks.is_rank0() ? whole.stored().size() : 0);
    for (size_t i = 0; i < collected.size(); ++i) {
      EXPECT_EQ(collected[i].first, whole.stored()[i].first);
      EXPECT_TRUE(at::equal(collected[i].second, whole.stored()[i].second)) << collected[i].first;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(FullyShardedWeights, Gradients,
                         ::testing::Values(std::tuple{"none", false, true}, std::tuple{"none", true, false},
                                           std::tuple{"none", true, true}, std::tuple{"mlp", false, false},
                                           std::tuple{"mlp", true, true}, std::tuple{"attention", false, true},
                                           std::tuple{"attention", true, false}, std::tuple{"full", false, false},
                                           std::tuple{"full", true, true}),
                         [](const auto& info) {
                           return fmt::format("{}_{}_{}", std::get<0>(info.param),
                                              std::get<1>(info.param) ? "bf16" : "fp32",
                                              std::get<2>(info.param) ? "tied" : "untied");
                         });

// Memory use in bytes per rank.
struct Use {
  double model = 0;  // memory in use after the model was sharded
  // between: weights, gradients and optimizer moments, measured between steps. peak: the maximum within a training
  // step.
  double between = 0, peak = INFINITY;
  double forward = INFINITY;  // maximum in a pass without gradients, minus the memory in use before it
};

ModelConfig deep_model() {
  ModelConfig c{.vocab_size = 64,
                .hidden_size = 128,
                .num_layers = 12,
                .attention = {.num_heads = 4, .num_kv_heads = 4, .head_dim = 32},
                .mlp = {.intermediate_size = 352}};
  c.attention.normalizer = Normalizer::softmax;
  return c;
}

// Measures the second and later training steps. They have few tokens, so that activations are small. Gloo's threads
// release memory late, especially on a busy machine. The minimum over several steps and passes does not contain this
// memory.
Use measure(int count, Sharding sharding, bool bf16) {
  CountingAllocator counter;
  const int64_t start = counter.live;
  Use use;
  as_ranks(count, [&](Communicator& ranks) {
    CountingAllocator::takes_part = true;
    LanguageModel model(deep_model(), 1);
    model.set_compute_dtype(bf16 ? at::kBFloat16 : at::kFloat);
    DataParallel parallel(model, ranks, sharding);
    const auto by_rank = [&](int64_t bytes) { return static_cast<double>(bytes - start) / count; };
    const auto note = [&](double& into) {
      ranks.barrier("before the memory measurement");
      if (ranks.is_rank0()) {
        into = by_rank(counter.live);
        // Wait until Gloo's threads have released their memory. No rank allocates memory during this time.
        for (int look = 0; look < 20; ++look) {
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
          into = std::min(into, by_rank(counter.live));
        }
      }
      ranks.barrier("after the memory measurement");
    };
    note(use.model);
    AdamW optimizer(parallel.optimizer_parameters(), {});
    for (int step = 0; step < 4; ++step) {
      ranks.barrier("the step");
      if (ranks.is_rank0()) counter.peak = counter.live;
      ranks.barrier("its start");
      const at::Tensor ids = tokens(step, 1, 8, 64);
      parallel.begin_backward(true);
      model.loss(ids, ids).backward();
      parallel.finish_gradients();
      note(use.between);
      if (ranks.is_rank0() && step > 0) use.peak = std::min(use.peak, by_rank(counter.peak));
      optimizer.step(1e-3, 1, 0);
      parallel.weights_updated();
      parallel.zero_grad();
    }
    for (int pass = 0; pass < 3; ++pass) {
      double before = 0;
      note(before);
      if (ranks.is_rank0()) counter.peak = counter.live;
      ranks.barrier("a pass without gradients");
      {
        const at::NoGradGuard no_grad;
        const at::Tensor ids = tokens(3, 1, 8, 64);
        model.loss(ids, ids);
      }
      ranks.barrier("its end");
      if (ranks.is_rank0()) use.forward = std::min(use.forward, by_rank(counter.peak) - before);
    }
  });
  return use;
}

TEST(FullyShardedWeightsSlow, MemoryPerRank_MatchesPlan) {
  const auto n = static_cast<double>(count_parameters(deep_model()).total);
  const double block =
      static_cast<double>(product_weights(deep_model())) / static_cast<double>(deep_model().num_layers);
  fmt::print("{} parameters, {} per layer; MB per rank\n{:<28}{:>10}{:>10}{:>10}{:>10}\n", n, block, "", "weights",
             "between", "peak", "forward");
  for (const bool bf16 : {false, true}) {
    for (const int count : {2, 4}) {
      for (const Sharding sharding : kShardings) {
        if (bf16 && sharding != Sharding::full_shard) continue;
        const Use use = measure(count, sharding, bf16);
        fmt::print("{:<28}{:>10.2f}{:>10.2f}{:>10.2f}{:>10.2f}\n",
                   fmt::format("{} {} {}", bf16 ? "bf16" : "fp32", count, name(sharding)), use.model / 1e6,
                   use.between / 1e6, use.peak / 1e6, use.forward / 1e6);
        if (sharding != Sharding::full_shard) continue;
        const auto planned =
            state_parts({.model = deep_model(), .ranks = count, .bf16 = bf16, .gpu = false, .sharding = sharding});
        const auto bytes = [&](size_t part) { return static_cast<double>(planned[part].bytes); };
        EXPECT_NEAR(use.model, bytes(0), 0.02 * bytes(0));
        EXPECT_NEAR(use.between, 16 * n / count, 0.02 * 16 * n / count);
        EXPECT_NEAR(use.between, bytes(0) + bytes(1) + bytes(2), 0.02 * use.between);
        // The weights of two of the twelve layers are gathered at the same time. With bf16, copies of the transferred
        // data need additional memory. `late` is the memory of 1.5 layers, which may be released late.
        const double late = 1.5 * block * (bf16 ? 2 : 4);
        EXPECT_LT(use.forward, block * (bf16 ? 2 * (2 + 2.0 / count) : 4 * 2) + late);
        ASSERT_EQ(planned[3].name, "gathered weights");
        ASSERT_EQ(planned[4].name, "in-flight gradients");
        EXPECT_LT(use.peak - use.between, bytes(3) + bytes(4) + late + 1.5 * block * 4);
        EXPECT_GT(use.peak - use.between, 0.6 * (bytes(3) + bytes(4)));
      }
    }
  }
}

// While a layer is computed, only the weights of this layer may be gathered: all other tensors of the model must be
// empty.
TEST(FullyShardedWeights, Forward_GathersOnlyTheCurrentLayer) {
  as_ranks(2, [](Communicator& ranks) {
    LanguageModel model(deep_model(), 1);
    DataParallel parallel(model, ranks, Sharding::full_shard);
    int64_t layers = 0;
    ForwardOptions options;
    options.on_attention_input = [&](int64_t layer, const at::Tensor&, const at::Tensor&) {
      ++layers;
      for (const auto& [name, tensor] : model.stored()) {
        const bool of_layer = name.find(fmt::format(".layers.{}.", layer)) != std::string::npos;
        EXPECT_EQ(tensor.storage().nbytes() > 0, of_layer) << name << " in layer " << layer;
      }
    };
    model.forward(tokens(1, 1, 8, 64), options);
    EXPECT_EQ(layers, deep_model().num_layers);
    for (const auto& [name, tensor] : model.stored()) EXPECT_EQ(tensor.storage().nbytes(), 0u) << name;
  });
}

TEST(FullyShardedWeights, OneRank_DoesNotShard) {
  as_ranks(1, [](Communicator& ranks) {
    LanguageModel model(small_model(true), 3);
    DataParallel parallel(model, ranks, Sharding::full_shard);
    EXPECT_FALSE(parallel.sharded());
    EXPECT_EQ(parallel.shards().size(), model.parameters().size());
    const at::Tensor ids = tokens(1, 2, 24, 67);
    model.loss(ids, ids).backward();
    parallel.finish_gradients();
    EXPECT_TRUE(model.parameters().front().second.grad().defined());
  });
}

TEST(FullyShardedWeights, Logits_HaveNoGradient) {
  as_ranks(2, [](Communicator& ranks) {
    LanguageModel model(small_model(true), 3);
    DataParallel parallel(model, ranks, Sharding::full_shard);
    const at::Tensor hidden = model.forward(tokens(1, 1, 8, 67)).hidden;
    EXPECT_THROW(model.logits(hidden), Error);
  });
}

}  // namespace
}  // namespace lazy::train
