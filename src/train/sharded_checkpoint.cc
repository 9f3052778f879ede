#include "train/sharded_checkpoint.h"

#include <exception>

#include "core/error.h"

namespace lazy::train {
namespace fs = std::filesystem;

namespace {

// Does its part, meets the others, and fails when any of them failed.
void together(const Agree& agree, const std::string& who, const std::function<void()>& part) {
  std::string mine;
  try {
    part();
  } catch (const std::exception& e) {
    mine = e.what();
  }
  const std::string all = agree(mine.empty() ? "" : who + mine);
  if (!mine.empty()) throw RunError(mine);
  if (!all.empty()) throw RunError(all);
}

void follow(const fs::path& folder, int rank, int world, const std::vector<Piece>& pieces, const Agree& agree) {
  const std::string who = fmt::format("rank {}: ", rank);
  together(agree, who, [] {});  // the folder is there
  together(agree, who, [&] { write_pieces(folder, rank, world, pieces); });
  together(agree, who, [] {});  // it has its name
}

}  // namespace

void save_sharded(CheckpointStore& store, const TrainState& state, int rank, int world,
                  const std::vector<Piece>& pieces, const std::function<void(const fs::path&)>& write_rest,
                  const Agree& agree) {
  const std::string not_saved = fmt::format("checkpoint of step {} not saved: ", state.step);
  if (rank != 0) {
    try {
      follow(store.temporary(state.step), rank, world, pieces, agree);
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
      together(agree, "", [] {});
      together(agree, "", [&] {
        write_rest(folder);
        write_pieces(folder, rank, world, pieces);
      });
      all_written = true;
      const PieceReader complete(folder);  // every part can be seen from here
    });
  } catch (const std::exception& e) {
    error = std::current_exception();
    why = e.what();
  }
  // The others still wait: for the folder, or for its name.
  if (!folder_made || all_written) agree(why);
  if (error) std::rethrow_exception(error);
}

}  // namespace lazy::train
