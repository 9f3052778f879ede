// Sharded state: any number of ranks each write the pieces of tensors that they hold, and any other number read back
// what they need. One file a rank, STEM-00001-of-00004.safetensors; a piece is a tensor "NAME[BEGIN:END]" of flat
// elements, and the file's metadata has under that key {"name", "shape" of the whole, "begin", "end", "xxh3" of the
// bytes}.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "train/distributed/pieces.h"

namespace lazy::train {

// The file of one rank, complete and synced when this returns. `rank` counts from 0, the file names from 1.
void write_pieces(const std::filesystem::path& folder, int rank, int world, const std::vector<Piece>& pieces,
                  const std::string& stem = "optimizer");

// What a folder holds, from the headers of its files alone. Error, in one line, when a file or a piece is missing, two
// pieces overlap, or they disagree about the tensor. STEM.safetensors, as one process writes it, reads as whole pieces.
class PieceReader {
 public:
  explicit PieceReader(const std::filesystem::path& folder, const std::string& stem = "optimizer");
  ~PieceReader();
  PieceReader(PieceReader&&) noexcept;

  std::vector<std::string> names() const;  // sorted
  const std::vector<int64_t>& shape(const std::string& name) const;
  // Elements [begin, end), flat, in memory of its own. Reads and verifies only the pieces they lie in.
  at::Tensor read(const std::string& name, int64_t begin, int64_t end) const;
  at::Tensor read(const std::string& name) const;  // all of it, in its shape
  std::map<std::string, at::Tensor> read_all() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lazy::train
