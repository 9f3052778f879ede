#include "train/distributed_checkpoint.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <exception>
#include <fstream>
#include <random>

#include "core/error.h"
#include "distributed/communicator.h"

namespace lazy::train {

namespace fs = std::filesystem;

namespace {

// Runs `part`, then waits for the other ranks. Throws RunError if `part` has failed on any rank. `who` is prepended to
// the error message that other ranks receive.
void run_then_sync(const FailureBarrier& barrier, const std::string& who, const std::function<void()>& part) {
  std::string mine;
  try {
    part();
  } catch (const std::exception& e) {
    mine = e.what();
  }
  const std::string all = barrier(mine.empty() ? "" : who + mine);
  if (!mine.empty()) throw RunError(mine);
  if (!all.empty()) throw RunError(all);
}

void write_as_follower(const fs::path& folder, int rank, int world_size,
                       const std::vector<distributed::TensorShard>& shards, const FailureBarrier& barrier) {
  const std::string who = fmt::format("rank {}: ", rank);
  run_then_sync(barrier, who, [] {});  // waits until rank 0 has created the folder
  run_then_sync(barrier, who, [&] { distributed::write_shards(folder, rank, world_size, shards); });
  run_then_sync(barrier, who, [] {});  // waits until rank 0 has renamed the folder
}

}  // namespace

void save_sharded(CheckpointStore& store, const TrainState& state, int rank, int world_size,
                  const std::vector<distributed::TensorShard>& shards,
                  const std::function<void(const fs::path&)>& write_rest, const FailureBarrier& barrier) {
  const std::string not_saved = fmt::format("checkpoint of step {} not saved: ", state.step);
  if (rank != 0) {
    try {
      write_as_follower(store.temporary_path(state.step), rank, world_size, shards, barrier);
    } catch (const std::exception& e) {
      const std::string why = e.what();
      throw RunError(why.starts_with(not_saved) ? why : not_saved + why);
    }
    return;
  }
  bool folder_made = false, all_written = false;
  std::exception_ptr error;
  std::string why;
  try {
    store.save(state, [&](const fs::path& folder) {
      folder_made = true;
      run_then_sync(barrier, "", [] {});
      run_then_sync(barrier, "", [&] {
        write_rest(folder);
        distributed::write_shards(folder, rank, world_size, shards);
      });
      all_written = true;
      const distributed::ShardReader complete(folder);  // throws if the file of a rank is not visible on this rank
    });
  } catch (const std::exception& e) {
    error = std::current_exception();
    why = e.what();
  }
  // The other ranks may still wait in the barrier until the folder is created or renamed, so rank 0 must call the
  // barrier too.
  if (!folder_made || all_written) barrier(why);
  if (error) std::rethrow_exception(error);
}

// Rank 0 creates a folder with a random name and the other ranks create a file in it. Rank 0 then checks that it can
// see all of these files.
bool is_shared_folder(const fs::path& folder, distributed::Communicator& communicator) {
  if (communicator.size() == 1) return true;
  const distributed::Communicator::WaitScope waiting(communicator, "checking whether the run folder is shared");
  std::error_code error;
  std::random_device random;
  const std::string name = communicator.broadcast(fmt::format(".tmp-seen-{:08x}{:08x}", random(), random()));
  const fs::path probe = folder / name;
  const auto file_of = [&](int rank) { return probe / fmt::format("rank-{}", rank); };
  if (communicator.is_rank0()) fs::create_directory(probe, error);
  communicator.sum({0});  // barrier: wait until the folder exists
  if (!communicator.is_rank0() && fs::is_directory(probe, error))
    std::ofstream(file_of(communicator.rank())) << "seen\n";
  communicator.sum({0});  // barrier: wait until the files exist
  bool all = true;
  if (communicator.is_rank0()) {
    for (int rank = 1; rank < communicator.size(); ++rank) all &= fs::exists(file_of(rank), error);
    fs::remove_all(probe, error);
  }
  return communicator.sum({communicator.is_rank0() && all ? 1.0 : 0.0}).front() > 0;
}

StagedTensors::StagedTensors() = default;
StagedTensors::~StagedTensors() = default;

void StagedTensors::stage(const NamedTensors& tensors) {
  const at::NoGradGuard no_grad;
  copies_.resize(tensors.size());
  std::optional<at::Device> gpu;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, source] = tensors[i];
    auto& [copied_name, copy] = copies_[i];
    copied_name = name;
    if (!copy.defined() || copy.sizes() != source.sizes() || copy.scalar_type() != source.scalar_type()) {
      copy = at::empty(source.sizes(), at::TensorOptions().dtype(source.scalar_type()).pinned_memory(!source.is_cpu()));
    }
    copy.copy_(source.detach(), /*non_blocking=*/true);
    if (!source.is_cpu()) gpu = source.device();
  }
  copied_.reset();
  if (!gpu) return;
  copied_ = std::make_unique<c10::Event>(gpu->type());
  copied_->record(c10::impl::VirtualGuardImpl(gpu->type()).getStream(*gpu));
}

const NamedTensors& StagedTensors::tensors() const {
  if (copied_) copied_->synchronize();
  return copies_;
}

}  // namespace lazy::train
