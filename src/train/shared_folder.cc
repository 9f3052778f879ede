#include "train/shared_folder.h"

#include <fmt/format.h>

#include <fstream>
#include <random>

namespace lazy::train {
namespace fs = std::filesystem;

// The first rank makes a folder that nobody can have seen before; the others leave a file there, which it finds.
bool is_shared_folder(const fs::path& folder, Communicator& communicator) {
  if (communicator.size() == 1) return true;
  const Communicator::Waiting waiting(communicator, "looking for the run's folder");
  std::error_code error;
  std::random_device random;
  const std::string name = communicator.broadcast(fmt::format(".tmp-seen-{:08x}{:08x}", random(), random()));
  const fs::path probe = folder / name;
  const auto file_of = [&](int rank) { return probe / fmt::format("rank-{}", rank); };
  if (communicator.first()) fs::create_directory(probe, error);
  communicator.sum({0});  // it is there
  if (!communicator.first() && fs::is_directory(probe, error)) std::ofstream(file_of(communicator.rank())) << "seen\n";
  communicator.sum({0});  // everybody has been there
  bool all = true;
  if (communicator.first()) {
    for (int rank = 1; rank < communicator.size(); ++rank) all &= fs::exists(file_of(rank), error);
    fs::remove_all(probe, error);
  }
  return communicator.sum({communicator.first() && all ? 1.0 : 0.0}).front() > 0;
}

}  // namespace lazy::train
