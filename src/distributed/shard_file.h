// Files of sharded tensors: any number of ranks each write the shards that they hold, and any other number read what
// they need. One file a rank, STEM-00001-of-00004.safetensors; a shard is a tensor "NAME[BEGIN:END]" of flat elements,
// and the file's metadata has under that key {"name", "shape" of the whole tensor, "begin", "end", "xxh3" of the
// bytes}.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace lazy::distributed {

// The part of a named tensor that one rank holds. Independent of the number of ranks, so that a checkpoint can be
// resharded when it is loaded.
struct TensorShard {
  std::string name;
  at::Tensor tensor;                  // elements [begin, end) of the whole tensor, flattened in row-major order
  std::vector<int64_t> global_shape;  // of the whole tensor
  int64_t begin = 0, end = 0;

  int64_t global_numel() const {
    int64_t n = 1;
    for (const int64_t size : global_shape) n *= size;
    return n;
  }
};

// Writes and syncs the file of one rank. `rank` counts from 0, the file names from 1.
void write_shards(const std::filesystem::path& folder, int rank, int world_size, const std::vector<TensorShard>& shards,
                  const std::string& stem = "optimizer");

// The tensors of a folder, from the headers of its files. Error, in one line, when a file or a shard is missing, two
// shards overlap, or they disagree about a tensor. An unsharded STEM.safetensors is read too.
class ShardReader {
 public:
  explicit ShardReader(const std::filesystem::path& folder, const std::string& stem = "optimizer");
  ~ShardReader();
  ShardReader(ShardReader&&) noexcept;

  std::vector<std::string> names() const;  // sorted
  const std::vector<int64_t>& shape(const std::string& name) const;
  // Flat elements [begin, end), copied. Reads and verifies only the shards that contain them.
  at::Tensor read(const std::string& name, int64_t begin, int64_t end) const;
  at::Tensor read(const std::string& name) const;  // the whole tensor, in its shape
  std::map<std::string, at::Tensor> read_all() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lazy::distributed
