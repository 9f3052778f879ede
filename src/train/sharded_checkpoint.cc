#include "train/sharded_checkpoint.h"

#include <exception>

#include "core/error.h"

namespace lazy::train {
namespace fs = std::filesystem;

namespace {

// Does its part, meets the others, and fails when any of them failed: with its own reason where it has one.
void together(const Agree& agree, const std::function<void()>& part) {
  std::exception_ptr error;
  try {
    part();
  } catch (...) {
    error = std::current_exception();
  }
  const bool all = agree(!error);
  if (error) std::rethrow_exception(error);
  if (!all) throw RunError("another rank could not write its part");
}

void follow(const fs::path& folder, int rank, int world, const std::vector<Piece>& pieces, const Agree& agree) {
  together(agree, [] {});  // the folder is there
  together(agree, [&] { write_pieces(folder, rank, world, pieces); });
  together(agree, [] {});  // it has its name
}

}  // namespace

void save_sharded(CheckpointStore& store, const TrainState& state, int rank, int world, const std::vector<Piece>& pieces,
                  const std::function<void(const fs::path&)>& write_rest, const Agree& agree) {
  if (rank != 0) {
    try {
      follow(store.temporary(state.step), rank, world, pieces, agree);
    } catch (const std::exception& e) {
      throw RunError(fmt::format("checkpoint of step {} not saved: {}", state.step, e.what()));
    }
    return;
  }
  bool folder_made = false, all_written = false;
  std::exception_ptr error;
  try {
    store.save(state, [&](const fs::path& folder) {
      folder_made = true;
      together(agree, [] {});
      together(agree, [&] {
        write_rest(folder);
        write_pieces(folder, rank, world, pieces);
      });
      all_written = true;
    });
  } catch (...) {
    error = std::current_exception();
  }
  // The others still wait: for the folder, or for its name.
  if (!folder_made || all_written) agree(!error);
  if (error) std::rethrow_exception(error);
}

}  // namespace lazy::train
