// Tests gradients, shards and optimizer state over several ranks, which are threads of this process. All gradients are
// integers, so that sums do not depend on the order of addition.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "distributed/data_parallel.h"
#include "support/error_of.h"
#include "train/distributed_checkpoint.h"
#include "train/optimizer.h"
#include "train/ranks.h"

namespace lazy::train {
namespace {

using Parameters = DataParallel::Parameters;

// so small that there are several buckets and one parameter that is larger than a bucket
constexpr int64_t kBucketBytes = 256;

Parameters make_parameters() {
  const at::NoGradGuard no_grad;
  Parameters out;
  int64_t k = 0;
  for (const auto& shape : std::vector<std::vector<int64_t>>{{7, 3}, {1}, {13, 11}, {5}, {40}, {2, 2, 2}}) {
    int64_t numel = 1;
    for (const int64_t n : shape) numel *= n;
    const std::string name = fmt::format("model.layers.{}.{}", k, k % 2 ? "norm.weight" : "proj.weight");
    out.emplace_back(name,
                     (at::arange(numel, at::kFloat).view(shape) + static_cast<double>(10 * ++k)).requires_grad_(true));
  }
  return out;
}

// Returns the gradient of parameter k in a micro-batch. Its elements are integers that depend on the micro-batch (and
// thus on the rank), on k and on the position of the element.
at::Tensor micro_gradient(const at::Tensor& parameter, int64_t micro, size_t k) {
  return at::remainder(
             at::arange(parameter.numel(), at::kFloat).view(parameter.sizes()) * (3 + static_cast<double>(k)) +
                 static_cast<double>(17 * micro),
             31) -
         15;
}

// Returns whether parameter k has a gradient in a micro-batch. Parameter 3 never has one. Parameter 4 has none in the
// last micro-batch.
bool takes_part(size_t k, int64_t round, int64_t rounds) { return k != 3 && !(k == 4 && round + 1 == rounds); }

void backward(const Parameters& parameters, int64_t micro, int64_t round, int64_t rounds) {
  at::Tensor loss = at::zeros({});
  for (size_t k = 0; k < parameters.size(); ++k) {
    if (takes_part(k, round, rounds))
      loss = loss + (parameters[k].second * micro_gradient(parameters[k].second, micro, k)).sum();
  }
  loss.backward();
}

std::vector<at::Tensor> expected_gradients(const Parameters& parameters, int64_t ranks, int64_t rounds) {
  std::vector<at::Tensor> out;
  for (size_t k = 0; k < parameters.size(); ++k) {
    at::Tensor sum = at::zeros_like(parameters[k].second.detach());
    for (int64_t round = 0; round < rounds; ++round) {
      for (int64_t rank = 0; rank < ranks; ++rank) {
        if (takes_part(k, round, rounds)) sum += micro_gradient(sum, round * ranks + rank, k);
      }
    }
    out.push_back(sum);
  }
  return out;
}

void compute(DataParallel& parallel, const Parameters& parameters, Communicator& ranks, int64_t rounds) {
  for (int64_t round = 0; round < rounds; ++round) {
    parallel.begin_backward(round + 1 == rounds);
    backward(parameters, round * ranks.size() + ranks.rank(), round, rounds);
  }
  parallel.finish_gradients();
}

class Parallel : public ::testing::TestWithParam<std::tuple<int, Sharding>> {};

TEST_P(Parallel, Gradients_AreSumsOverRanks) {
  const auto [count, sharding] = GetParam();
  std::mutex mutex;
  std::vector<int64_t> covered;
  as_ranks(count, [&, sharding = sharding](Communicator& ranks) {
    const Parameters parameters = make_parameters();
    DataParallel parallel(parameters, ranks, sharding, kBucketBytes);
    for (const int64_t rounds : {1, 3, 2}) {  // numbers of micro-batches in three consecutive steps
      compute(parallel, parameters, ranks, rounds);
      const auto expected = expected_gradients(parameters, ranks.size(), rounds);
      for (const TensorShard& shard : parallel.shards()) {
        size_t k = 0;
        while (parameters[k].first != shard.name) ++k;
        if (count == 1 && !shard.tensor.grad().defined()) {  // a single process leaves an unused gradient undefined
          EXPECT_TRUE(at::equal(expected[k], at::zeros_like(expected[k])));
          continue;
        }
        ASSERT_TRUE(shard.tensor.grad().defined()) << shard.name;
        EXPECT_TRUE(
            at::equal(shard.tensor.grad().reshape({-1}), expected[k].view({-1}).slice(0, shard.begin, shard.end)))
            << shard.name << " rank " << ranks.rank() << " rounds " << rounds;
      }
      parallel.zero_grad();
    }
    const std::lock_guard lock(mutex);
    covered.resize(parameters.size());
    for (const TensorShard& shard : parallel.shards()) {
      size_t k = 0;
      while (parameters[k].first != shard.name) ++k;
      covered[k] += shard.end - shard.begin;
      EXPECT_EQ(shard.global_numel(), parameters[k].second.numel());
    }
  });
  const auto parameters = make_parameters();
  for (size_t k = 0; k < covered.size(); ++k) {
    EXPECT_EQ(covered[k], parameters[k].second.numel() * (sharding == Sharding::zero2 ? 1 : count)) << k;
  }
}

// Compares AdamW on shards with AdamW on whole parameters. After some steps, the optimizer state is gathered on one
// rank, distributed to the ranks again, and used for further steps.
TEST_P(Parallel, Optimizer_MatchesSingleProcess) {
  const auto [count, sharding] = GetParam();
  const AdamWOptions options{.lr = 1e-2, .weight_decay = 0.1};
  Parameters whole = make_parameters();
  AdamW reference(whole, options);
  for (int step = 0; step < 4; ++step) {
    const auto gradients = expected_gradients(whole, count, 2);
    for (size_t k = 0; k < whole.size(); ++k) whole[k].second.mutable_grad() = gradients[k];
    reference.step(1e-2, reference.gradient_norm(), 0);
  }
  std::map<std::string, at::Tensor> wanted;
  for (const auto& [name, tensor] : reference.state()) wanted[name] = tensor;

  as_ranks(count, [&, sharding = sharding](Communicator& ranks) {
    const Parameters parameters = make_parameters();
    DataParallel parallel(parameters, ranks, sharding, kBucketBytes);
    std::map<std::string, at::Tensor> state;
    const auto steps = [&](int number, bool resumed) {
      AdamW optimizer(parallel.optimizer_parameters(), options);
      if (resumed) optimizer.load_state(parallel.scatter_state(state, "file"), "file");
      for (int step = 0; step < number; ++step) {
        compute(parallel, parameters, ranks, 2);
        optimizer.step(1e-2, 1, 0);
        parallel.weights_updated();
        parallel.zero_grad();
      }
      const auto collected = parallel.gather_state(optimizer.state());
      state.clear();
      for (const auto& [name, tensor] : collected) state[name] = tensor.clone();
      EXPECT_EQ(state.empty(), !ranks.is_rank0());
    };
    steps(3, false);
    steps(1, true);
    for (size_t k = 0; k < parameters.size(); ++k) {
      // AdamW uses vector instructions, and scalar code for the remaining elements. These may round differently, by one
      // unit in the last place per step.
      EXPECT_TRUE(at::allclose(parameters[k].second, whole[k].second, 4 * std::numeric_limits<float>::epsilon(), 0))
          << k;
    }
    if (!ranks.is_rank0()) return;
    ASSERT_EQ(state.size(), wanted.size());
    for (const auto& [name, tensor] : wanted) {
      ASSERT_TRUE(state.count(name)) << name;
      EXPECT_EQ(state[name].sizes(), tensor.sizes()) << name;
      EXPECT_TRUE(at::allclose(state[name], tensor, 4 * std::numeric_limits<float>::epsilon(), 0)) << name;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Parallel,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4),
                                            ::testing::Values(Sharding::replicate, Sharding::zero2)),
                         [](const auto& info) {
                           return fmt::format("{}_{}", std::get<0>(info.param),
                                              std::get<1>(info.param) == Sharding::zero2 ? "zero2" : "replicate");
                         });

TEST(Communicator, BroadcastAndSum_ReachAllRanks) {
  as_ranks(3, [](Communicator& ranks) {
    EXPECT_EQ(ranks.broadcast(ranks.is_rank0() ? std::string("a\0b", 3) : "other"), std::string("a\0b", 3));
    EXPECT_EQ(ranks.broadcast(std::string()), "");
    EXPECT_EQ(ranks.sum({1.0, static_cast<double>(ranks.rank())}), (std::vector<double>{3, 3}));
  });
}

// All ranks sum tensors in their main threads, while their background threads wait at barriers. In each round, one rank
// may report a failure at the barrier.
TEST(Communicator, BackgroundBarrier_WorksDuringSums) {
  constexpr int kRanks = 3, kRounds = 20;
  as_ranks(kRanks, [](Communicator& ranks) {
    std::thread writer([&] {
      for (int round = 0; round < kRounds; ++round) {
        const bool fails = round % 5 == 4 && ranks.rank() == round % kRanks;
        const std::string wanted = round % 5 == 4 ? fmt::format("round {}", round) : "";
        EXPECT_EQ(ranks.background_barrier(fails ? wanted : ""), wanted) << round;
      }
    });
    for (int i = 0; i < 200; ++i)
      EXPECT_EQ(ranks.sum({1.0, static_cast<double>(i)}), (std::vector<double>{kRanks, 1.0 * kRanks * i}));
    writer.join();
  });
}

TEST(Communicator, MissingWriter_IsNamed) {
  as_ranks(
      3,
      [](Communicator& ranks) {
        if (ranks.rank() != 1) {
          EXPECT_THAT(
              error_of<RunError>([&] { ranks.background_barrier(""); }),
              IsMessage("distributed: the following ranks did not write their part of a checkpoint within 1.0 s "
                        "after the other ranks: 1"));
        } else {
          std::this_thread::sleep_for(std::chrono::milliseconds(1500));
        }
      },
      std::chrono::seconds(1));
}

TEST(SharedFolder, FolderVisibleToAllRanks_IsShared) {
  const ScratchFolder scratch;
  std::filesystem::create_directories(scratch / "a");
  std::filesystem::create_directories(scratch / "b");
  for (const auto& [name, expected] : {std::pair{"a", true}, std::pair{"b", false}, std::pair{"nowhere", false}}) {
    as_ranks(3, [&, name = name, expected = expected](Communicator& ranks) {
      EXPECT_EQ(is_shared_folder(scratch / (ranks.rank() == 2 ? name : "a"), ranks), expected) << name;
    });
  }
  EXPECT_TRUE(std::filesystem::is_empty(scratch / "a"));
  EXPECT_TRUE(std::filesystem::is_empty(scratch / "b"));
}

// Rank 1 runs and sends heartbeats, but it does not reach the barrier. The error of the other ranks must name rank 1.
TEST(CommunicatorDeathTest, LiveRankThatMissesBarrier_IsNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto body = [](Communicator& ranks) {
    ranks.set_step(7);
    ranks.barrier("the first meeting");
    if (ranks.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(60));
    ranks.barrier("the second meeting");
  };
  EXPECT_EXIT(
      as_ranks(3, body, std::chrono::seconds(3)), ::testing::ExitedWithCode(1),
      Names({std::string("rank 1"), std::string("the second meeting"), 7, "3.0", std::string("the first meeting")}));
}

}  // namespace
}  // namespace lazy::train
