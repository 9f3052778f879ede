// Tests optimizer state that is saved with one number of ranks and loaded with another.
#include "distributed/shard_file.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <thread>

#include "core/file.h"
#include "model/safetensors.h"
#include "support/error_of.h"
#include "train/distributed_checkpoint.h"
#include "train/scratch.h"

namespace lazy::train {
using namespace distributed;
namespace {
namespace fs = std::filesystem;

// The sizes of the tensors are odd, so that the boundaries of shards are at arbitrary positions. One tensor has fewer
// elements than there are ranks, one is empty, and one is a scalar.
const NamedTensors& state() {
  static const NamedTensors tensors = [] {
    at::manual_seed(5);
    return NamedTensors{{"exp_avg.embed", at::randn({37, 11})},
                        {"exp_avg.norm", at::randn({5})},
                        {"exp_avg.half", at::randn({129}).to(at::kBFloat16)},
                        {"empty", at::zeros({0, 3})},
                        {"step", at::scalar_tensor(17, at::kLong)}};
  }();
  return tensors;
}

int64_t cut(int64_t elements, int rank, int world) { return elements * rank / world; }

std::vector<TensorShard> shards_of(int rank, int world) {
  std::vector<TensorShard> out;
  for (const auto& [name, tensor] : state()) {
    const bool spread = tensor.dim() > 0 && tensor.numel() > 0;
    if (!spread && rank > 0) continue;
    const int64_t begin = spread ? cut(tensor.numel(), rank, world) : 0,
                  end = spread ? cut(tensor.numel(), rank + 1, world) : tensor.numel();
    out.push_back({name, tensor.reshape(-1).slice(0, begin, end), tensor.sizes().vec(), begin, end});
  }
  return out;
}

void write_all(const fs::path& folder, int world) {
  for (int rank = 0; rank < world; ++rank) write_shards(folder, rank, world, shards_of(rank, world));
}

TEST(Pieces, State_ReadsBackForAnyNumberOfRanks) {
  for (const int writers : {1, 2, 3, 4, 8}) {
    const ScratchFolder scratch;
    write_all(scratch.path(), writers);
    for (const int readers : {1, 2, 3, 4, 8}) {
      SCOPED_TRACE(fmt::format("{} -> {}", writers, readers));
      for (const auto& [name, tensor] : state()) {
        std::vector<at::Tensor> parts;
        for (int rank = 0; rank < readers; ++rank) {
          const ShardReader reader(scratch.path());
          EXPECT_EQ(reader.shape(name), tensor.sizes().vec());
          parts.push_back(
              reader.read(name, cut(tensor.numel(), rank, readers), cut(tensor.numel(), rank + 1, readers)));
        }
        const at::Tensor back = at::cat(parts).view(tensor.sizes());
        EXPECT_EQ(back.scalar_type(), tensor.scalar_type());
        EXPECT_TRUE(at::equal(back, tensor)) << name;
      }
    }
    const auto all = ShardReader(scratch.path()).read_all();
    EXPECT_EQ(all.size(), state().size());
    for (const auto& [name, tensor] : state()) EXPECT_TRUE(at::equal(all.at(name), tensor)) << name;
  }
}

TEST(Pieces, FileOfOneProcess_ReadsTheSame) {
  const ScratchFolder scratch;
  write_safetensors(scratch / "optimizer.safetensors", state());
  const ShardReader reader(scratch.path());
  for (const auto& [name, tensor] : state()) EXPECT_TRUE(at::equal(reader.read(name), tensor)) << name;
  EXPECT_TRUE(at::equal(reader.read("exp_avg.embed", 20, 300), state()[0].second.reshape(-1).slice(0, 20, 300)));
}

TEST(Pieces, MissingOrDuplicatePiece_IsNamed) {
  const ScratchFolder scratch;
  EXPECT_THAT(error_of([&] { ShardReader(scratch.path()); }),
              Names({"optimizer.safetensors", "optimizer-00001-of-00001.safetensors"}));
  write_all(scratch.path(), 3);
  EXPECT_EQ(error_of([&] { ShardReader(scratch.path()); }), "");
  fs::rename(scratch / "optimizer-00002-of-00003.safetensors", scratch / "aside");
  EXPECT_THAT(error_of([&] { ShardReader(scratch.path()); }),
              Names({"optimizer-00002-of-00003.safetensors", std::string(std::strerror(ENOENT))}));

  auto shards = shards_of(1, 3);
  const TensorShard norm = shards[1];  // the shard exp_avg.norm[1:3], which this test omits from the file
  shards.erase(shards.begin() + 1);
  write_shards(scratch.path(), 1, 3, shards);
  EXPECT_THAT(
      error_of([&] { ShardReader(scratch.path()); }),
      IsMessage(fmt::format("checkpoint: {}: exp_avg.norm: elements 1 to 3 are missing", scratch.path().string())));
  shards.push_back({norm.name, state()[1].second.slice(0, 1, 4), norm.global_shape, 1, 4});
  write_shards(scratch.path(), 1, 3, shards);
  EXPECT_THAT(error_of([&] { ShardReader(scratch.path()); }),
              Names({"optimizer-00003-of-00003.safetensors", "exp_avg.norm[3:5]", 3, 4}));
  shards.back() = {norm.name, norm.tensor, {6}, 1, 3};
  write_shards(scratch.path(), 1, 3, shards);
  EXPECT_THAT(error_of([&] { ShardReader(scratch.path()); }),
              Names({"optimizer-00002-of-00003.safetensors", "exp_avg.norm[1:3]", "F32", "[6]", "[5]"}));
  write_shards(scratch.path(), 1, 3, shards_of(1, 3));
  EXPECT_EQ(error_of([&] { ShardReader(scratch.path()); }), "");
  write_shards(scratch.path(), 0, 2, shards_of(0, 2));
  EXPECT_THAT(error_of([&] { ShardReader(scratch.path()); }), Names({scratch.path().string(), 2, 3}));

  const auto wrong = [&] { write_shards(scratch.path(), 0, 1, {{"x", at::zeros({3}), {2, 2}, 2, 5}}); };
  EXPECT_THAT(error_of<RunError>(wrong), Names({"x", 2, 5, "[2,2]", 3}));
  const ShardReader reader = [&] {
    fs::remove(scratch / "optimizer-00001-of-00002.safetensors");
    return ShardReader(scratch.path());
  }();
  EXPECT_THAT(error_of([&] { reader.read("nothing"); }), Names({scratch.path().string(), "nothing"}));
  EXPECT_THAT(error_of([&] { reader.read("exp_avg.norm", 2, 6); }), Names({"exp_avg.norm", 5, 2, 6}));
}

TEST(Pieces, DamagedPiece_IsNamedAndOthersStayReadable) {
  const ScratchFolder scratch;
  write_all(scratch.path(), 4);
  const fs::path file = scratch / "optimizer-00003-of-00004.safetensors";
  const std::string whole = read_file(file);
  fs::resize_file(file, whole.size() - 1);
  EXPECT_THAT(error_of([&] { ShardReader(scratch.path()); }), Names({"optimizer-00003-of-00004.safetensors"}));
  std::string flipped = whole;
  flipped.back() ^= 1;  // this byte is in the last shard of exp_avg.half, because 2-byte elements are stored last
  write_file_atomic(file, flipped);
  const ShardReader reader(scratch.path());
  EXPECT_THAT(error_of([&] { reader.read("exp_avg.half"); }),
              Names({"optimizer-00003-of-00004.safetensors", "exp_avg.half[64:96]"}));
  // the range 0 to 64 does not include the damaged byte, so it can be read
  EXPECT_TRUE(at::equal(reader.read("exp_avg.half", 0, 64), state()[2].second.slice(0, 0, 64)));
  EXPECT_TRUE(at::equal(reader.read("exp_avg.embed"), state()[0].second));
  for (size_t at = 8; at < 200; at += 7) {  // damages the header
    flipped = whole;
    flipped[at] ^= 0x55;
    write_file_atomic(file, flipped);
    EXPECT_NE(error_of([&] { ShardReader(scratch.path()).read_all(); }), "") << at;
  }
}

// Saves a checkpoint with ranks that are threads of this process. Every rank waits at every barrier, as in a process
// group. `failing`: rank whose data is invalid. Returns the error of each rank.
std::vector<std::string> save_on_ranks(CheckpointStore& store, int64_t step, int world, int failing = -1) {
  std::barrier<> arrived(world), left(world);
  std::mutex mutex;
  std::string failed;
  std::vector<std::string> errors(static_cast<size_t>(world));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.emplace_back([&, rank] {
      const FailureBarrier barrier = [&](const std::string& failure) {
        if (const std::lock_guard lock(mutex); failed.empty()) failed = failure;
        arrived.arrive_and_wait();
        const std::string result = failed;
        left.arrive_and_wait();
        return result;
      };
      TrainState at_step;
      at_step.step = step;
      auto shards = shards_of(rank, world);
      if (rank == failing) shards[0].end += 1;  // the range of the shard does not match the size of its tensor
      errors[static_cast<size_t>(rank)] = error_of<RunError>([&] {
        save_sharded(
            store, at_step, rank, world, shards,
            [](const fs::path& folder) { write_file_atomic(folder / "config.json", "{}"); }, barrier);
      });
    });
  }
  for (auto& rank : ranks) rank.join();
  return errors;
}

TEST(ShardedCheckpoint, Save_IsCompleteOrAbsent) {
  const ScratchFolder scratch;
  CheckpointStore store(scratch / "checkpoints", 0);
  for (const auto& error : save_on_ranks(store, 10, 4)) EXPECT_EQ(error, "");
  ASSERT_TRUE(store.newest_valid().has_value());
  EXPECT_EQ(ShardReader(store.path(10)).names().size(), state().size());
  for (const int failing : {0, 2, 3}) {
    const auto errors = save_on_ranks(store, 20, 4, failing);
    for (int rank = 0; rank < 4; ++rank) {
      const std::string& error = errors[static_cast<size_t>(rank)];
      EXPECT_THAT(error, Names({20, "exp_avg.embed"}));
      if (rank != failing && failing > 0) {
        EXPECT_THAT(error, Names({fmt::format("rank {}", failing)}));
      }
    }
    EXPECT_EQ(std::distance(fs::directory_iterator(scratch / "checkpoints"), fs::directory_iterator()), 1);
  }
  // A folder for checkpoints cannot be created inside a file. Rank 0 must fail before any rank writes data.
  write_file_atomic(scratch / "file", "");
  CheckpointStore nowhere(scratch / "file", 0);
  for (const auto& error : save_on_ranks(nowhere, 20, 3)) EXPECT_THAT(error, Names({20}));
  // the checkpoint cannot be renamed, because this name is in use
  fs::create_directories(scratch / "checkpoints/step-00000030/in the way");
  for (const auto& error : save_on_ranks(store, 30, 3)) EXPECT_THAT(error, Names({30}));
}

TEST(ShardedCheckpoint, DamagedPiece_SelectsPreviousCheckpoint) {
  for (const bool removed : {false, true}) {
    const ScratchFolder scratch;
    CheckpointStore store(scratch / "checkpoints", 0);
    save_on_ranks(store, 10, 3);
    save_on_ranks(store, 20, 2);
    const fs::path file = store.path(20) / "optimizer-00002-of-00002.safetensors";
    removed ? static_cast<void>(fs::remove(file)) : fs::resize_file(file, fs::file_size(file) - 4);
    ::testing::internal::CaptureStderr();
    const auto found = store.newest_valid();
    EXPECT_THAT(::testing::internal::GetCapturedStderr(), Names({"optimizer-00002-of-00002.safetensors"}));
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->state.step, 10);
    EXPECT_EQ(ShardReader(found->path).read("step").item<int64_t>(), 17);
  }
}

}  // namespace
}  // namespace lazy::train
