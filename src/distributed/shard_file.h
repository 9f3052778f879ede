// Files of sharded tensors. Each rank writes the shards that it holds; any other number of ranks can read the parts
// that they need. There is one file per rank, STEM-00001-of-00004.safetensors. A shard is stored as a tensor
// "NAME[BEGIN:END]" of flat elements. The metadata of the file has an entry with the same key: {"name", "shape" of the
// whole tensor, "begin", "end", "xxh3" checksum of the bytes}.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace lazy::distributed {

// The part of a named tensor that one rank holds. The description does not depend on the number of ranks, so a
// checkpoint can be resharded when it is loaded.
struct TensorShard {
  std::string name;
  at::Tensor tensor;                  // elements [begin, end) of the whole tensor, flattened in row-major order
  std::vector<int64_t> global_shape;  // shape of the whole tensor
  int64_t begin = 0, end = 0;

  int64_t global_numel() const {
    int64_t n = 1;
    for (const int64_t size : global_shape) n *= size;
    return n;
  }
};

// Writes and syncs the file of one rank. `rank` starts at 0; the numbers in file names start at 1.
void write_shards(const std::filesystem::path& folder, int rank, int world_size, const std::vector<TensorShard>& shards,
                  const std::string& stem = "optimizer");

// Reads the tensors of a folder, using the headers of its files. Throws Error if a file or a shard is missing, if two
// shards overlap, or if files disagree about a tensor. An unsharded file STEM.safetensors is also supported.
class ShardReader {
 public:
  explicit ShardReader(const std::filesystem::path& folder, const std::string& stem = "optimizer");
  ~ShardReader();
  ShardReader(ShardReader&&) noexcept;

  std::vector<std::string> names() const;  // sorted
  const std::vector<int64_t>& shape(const std::string& name) const;
  // Returns a copy of the flat elements [begin, end). Only the shards that contain them are read and verified.
  at::Tensor read(const std::string& name, int64_t begin, int64_t end) const;
  at::Tensor read(const std::string& name) const;  // returns the whole tensor in its original shape
  std::map<std::string, at::Tensor> read_all() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lazy::distributed
