#include "distributed/shard_file.h"

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>

#include "core/checksum.h"
#include "core/error.h"
#include "core/file.h"
#include "model/safetensors.h"

namespace lazy::distributed {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

std::string file_name(const std::string& stem, int64_t number, int64_t count) {
  return fmt::format("{}-{:05}-of-{:05}.safetensors", stem, number, count);
}

int64_t elements(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(count, size, &count)) return -1;
  }
  return count;
}

std::string bytes_checksum(const at::Tensor& tensor) {
  return fmt::format("{:016x}",
                     checksum(tensor.const_data_ptr(), static_cast<size_t>(tensor.numel()) * tensor.element_size()));
}

std::string shape_text(const std::vector<int64_t>& shape) { return Json(shape).dump(); }

}  // namespace

void write_shards(const fs::path& folder, int rank, int world_size, const std::vector<TensorShard>& shards,
                  const std::string& stem) {
  const fs::path path = folder / file_name(stem, rank + 1, world_size);
  NamedTensors tensors;
  std::map<std::string, std::string> metadata{{"format", "pt"}};
  for (const TensorShard& shard : shards) {
    if (shard.begin < 0 || shard.end < shard.begin || shard.end > elements(shard.global_shape) ||
        shard.tensor.numel() != shard.end - shard.begin) {
      fail_run("checkpoint", "{}: {}: the shard of elements {} to {} of shape {} has {} elements", path.string(),
               shard.name, shard.begin, shard.end, shape_text(shard.global_shape), shard.tensor.numel());
    }
    const at::Tensor plain = shard.tensor.detach().to(at::kCPU).contiguous().view(-1);
    const std::string key = fmt::format("{}[{}:{}]", shard.name, shard.begin, shard.end);
    metadata[key] = Json{{"name", shard.name},
                         {"shape", shard.global_shape},
                         {"begin", shard.begin},
                         {"end", shard.end},
                         {"xxh3", bytes_checksum(plain)}}
                        .dump();
    tensors.emplace_back(key, plain);
  }
  write_safetensors(path, tensors, metadata);
}

struct ShardReader::Impl {
  struct StoredRange {
    int64_t begin = 0, end = 0;
    size_t file = 0;
    std::string key, xxh3;  // xxh3 is empty for an unsharded file, whose checksum is in state.json
  };
  struct Whole {
    std::vector<int64_t> shape;
    std::string dtype;
    std::vector<StoredRange> ranges;  // sorted by check(), which also verifies that they have no gaps
  };
  std::string folder;
  std::vector<fs::path> paths;
  std::vector<SafetensorsFile> files;
  std::map<std::string, Whole> tensors;

  void find_files(const fs::path& where, const std::string& stem);
  void add(size_t file, const std::string& key);
  void check(const std::string& name, Whole& whole) const;
  const Whole& whole(const std::string& name) const {
    const auto found = tensors.find(name);
    if (found == tensors.end()) fail("checkpoint", "{}: found no shard of tensor '{}'", folder, name);
    return found->second;
  }
};

void ShardReader::Impl::find_files(const fs::path& where, const std::string& stem) {
  folder = where.string();
  if (fs::exists(where / (stem + ".safetensors"))) {
    paths.push_back(where / (stem + ".safetensors"));
    return;
  }
  int64_t count = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(where, error)) {
    const std::string name = entry.path().filename().string();
    if (name.size() != stem.size() + 27 || !name.starts_with(stem + "-")) continue;
    int64_t world = 0;
    std::from_chars(name.data() + stem.size() + 10, name.data() + stem.size() + 15, world);
    if (!name.ends_with(fmt::format("-of-{:05}.safetensors", world))) continue;
    if (count > 0 && world != count)
      fail("checkpoint", "{}: {} belongs to a set of {} files, but another file belongs to a set of {}", folder, name,
           world, count);
    count = world;
  }
  if (count == 0)
    fail("checkpoint", "{}: expected {}.safetensors or {}, found neither", folder, stem, file_name(stem, 1, 1));
  for (int64_t number = 1; number <= count; ++number) paths.push_back(where / file_name(stem, number, count));
}

void ShardReader::Impl::add(size_t file, const std::string& key) {
  const SafetensorsEntry& entry = files[file].entry(key);
  StoredRange range{0, elements(entry.shape), file, key, ""};
  std::string name = key;
  std::vector<int64_t> shape = entry.shape;
  const auto& metadata = files[file].metadata();
  if (const auto found = metadata.find(key); found != metadata.end()) {
    try {
      const Json json = Json::parse(found->second);
      name = json.at("name").get<std::string>();
      shape = json.at("shape").get<std::vector<int64_t>>();
      range.begin = json.at("begin").get<int64_t>();
      range.end = json.at("end").get<int64_t>();
      range.xxh3 = json.at("xxh3").get<std::string>();
    } catch (const Json::exception&) {
      fail("checkpoint", "{}: {}: expected name, shape, begin, end and xxh3, found {}", paths[file].string(), key,
           found->second);
    }
    if (range.begin < 0 || range.end > elements(shape) || range.end - range.begin != elements(entry.shape)) {
      fail("checkpoint", "{}: {}: expected elements {} to {} of shape {}, found {} elements", paths[file].string(), key,
           range.begin, range.end, shape_text(shape), elements(entry.shape));
    }
  }
  Whole& whole = tensors.try_emplace(name, Whole{shape, entry.dtype, {}}).first->second;
  if (whole.shape != shape || whole.dtype != entry.dtype) {
    fail("checkpoint", "{}: {}: found {} of shape {}, but another file has {} of shape {}", paths[file].string(), key,
         entry.dtype, shape_text(shape), whole.dtype, shape_text(whole.shape));
  }
  if (range.end > range.begin || elements(shape) == 0) whole.ranges.push_back(range);
}

void ShardReader::Impl::check(const std::string& name, Whole& whole) const {
  std::sort(whole.ranges.begin(), whole.ranges.end(),
            [](const StoredRange& a, const StoredRange& b) { return a.begin < b.begin; });
  int64_t reached = 0;
  for (const StoredRange& range : whole.ranges) {
    if (range.begin > reached)
      fail("checkpoint", "{}: {}: elements {} to {} are missing", folder, name, reached, range.begin);
    if (range.begin < reached) {
      fail("checkpoint", "{}: {}: elements {} to {} occur twice", paths[range.file].string(), range.key, range.begin,
           std::min(reached, range.end));
    }
    reached = range.end;
  }
  const int64_t all = elements(whole.shape);
  if (reached != all) fail("checkpoint", "{}: {}: elements {} to {} are missing", folder, name, reached, all);
}

ShardReader::ShardReader(const fs::path& folder, const std::string& stem) : impl_(std::make_unique<Impl>()) {
  impl_->find_files(folder, stem);
  for (const fs::path& path : impl_->paths) impl_->files.emplace_back(path);
  for (size_t file = 0; file < impl_->files.size(); ++file) {
    for (const std::string& key : impl_->files[file].names()) impl_->add(file, key);
  }
  for (auto& [name, whole] : impl_->tensors) impl_->check(name, whole);
}

ShardReader::~ShardReader() = default;
ShardReader::ShardReader(ShardReader&&) noexcept = default;

std::vector<std::string> ShardReader::names() const {
  std::vector<std::string> out;
  for (const auto& [name, whole] : impl_->tensors) out.push_back(name);
  return out;
}

const std::vector<int64_t>& ShardReader::shape(const std::string& name) const { return impl_->whole(name).shape; }

at::Tensor ShardReader::read(const std::string& name, int64_t begin, int64_t end) const {
  const auto& whole = impl_->whole(name);
  if (begin < 0 || end < begin || end > elements(whole.shape)) {
    fail("checkpoint", "{}: {}: expected a range within {} elements, found {} to {}", impl_->folder, name,
         elements(whole.shape), begin, end);
  }
  at::Tensor out;
  for (const auto& range : whole.ranges) {
    const int64_t from = std::max(begin, range.begin), to = std::min(end, range.end);
    if (out.defined() && from >= to) continue;
    const at::Tensor shard = impl_->files[range.file].tensor(range.key).view(-1);
    if (!out.defined()) out = at::empty({end - begin}, shard.options());
    if (from >= to) continue;
    if (const auto found = range.xxh3.empty() ? "" : bytes_checksum(shard); found != range.xxh3) {
      fail("checkpoint", "{}: {}: expected checksum {}, found {}", impl_->paths[range.file].string(), range.key,
           range.xxh3, found);
    }
    out.slice(0, from - begin, to - begin).copy_(shard.slice(0, from - range.begin, to - range.begin));
  }
  return out;
}

at::Tensor ShardReader::read(const std::string& name) const {
  const auto& shape = impl_->whole(name).shape;
  return read(name, 0, elements(shape)).view(shape);
}

std::map<std::string, at::Tensor> ShardReader::read_all() const {
  std::map<std::string, at::Tensor> out;
  for (const auto& [name, whole] : impl_->tensors) out.emplace(name, read(name));
  return out;
}

}  // namespace lazy::distributed
