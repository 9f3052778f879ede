// Reads safetensors files and the index of sharded files.
#include <ATen/ATen.h>

#include <algorithm>

#include "core/error.h"
#include "core/file.h"
#include "model/safetensors.h"
#include "model/weight_map.h"

namespace lazy {
namespace fs = std::filesystem;

std::optional<at::ScalarType> safetensors_dtype(const std::string& name) {
  static const std::map<std::string, at::ScalarType> types = {{"BOOL", at::kBool},
                                                              {"U8", at::kByte},
                                                              {"I8", at::kChar},
                                                              {"I16", at::kShort},
                                                              {"U16", at::kUInt16},
                                                              {"I32", at::kInt},
                                                              {"U32", at::kUInt32},
                                                              {"I64", at::kLong},
                                                              {"U64", at::kUInt64},
                                                              {"F16", at::kHalf},
                                                              {"BF16", at::kBFloat16},
                                                              {"F32", at::kFloat},
                                                              {"F64", at::kDouble},
                                                              {"C64", at::kComplexFloat},
                                                              {"F8_E5M2", at::kFloat8_e5m2},
                                                              {"F8_E4M3", at::kFloat8_e4m3fn},
                                                              {"F8_E8M0", at::kFloat8_e8m0fnu}};
  const auto found = types.find(name);
  if (found == types.end()) return std::nullopt;
  return found->second;
}

struct SafetensorsFile::Impl {
  struct OpenFile {
    std::shared_ptr<MappedFile> map;
    uint64_t data_start = 0;
  };
  struct FileEntry {
    SafetensorsEntry entry;
    size_t file;
  };
  std::vector<OpenFile> files;
  std::map<std::string, FileEntry> places;
  std::vector<std::string> names;
  std::map<std::string, std::string> metadata;

  std::vector<SafetensorsEntry> open(const fs::path& path) {
    OpenFile file{std::make_shared<MappedFile>(path), 0};
    SafetensorsHeader header = parse_safetensors(file.map->view(), path.string());
    file.data_start = header.data_start;
    if (files.empty()) metadata = std::move(header.metadata);
    files.push_back(std::move(file));
    return std::move(header.entries);
  }

  void open_index(const fs::path& path) {
    for (const auto& [file, listed] : read_weight_map(path, kSafetensors)) {
      const fs::path shard = path.parent_path() / file;
      std::map<std::string, SafetensorsEntry> held;
      for (SafetensorsEntry& entry : open(shard)) held.emplace(entry.name, std::move(entry));
      for (const std::string& name : listed) {
        const auto found = held.find(name);
        if (found == held.end()) {
          fail(kSafetensors, "{}: weight_map: tensor '{}' is assigned to {}, which does not contain it", path.string(),
               name, file);
        }
        places.emplace(name, FileEntry{found->second, files.size() - 1});
      }
    }
  }
};

SafetensorsFile::SafetensorsFile(const fs::path& path) : impl_(std::make_unique<Impl>()) {
  if (path.extension() == ".json") {
    impl_->open_index(path);
  } else {
    for (SafetensorsEntry& entry : impl_->open(path)) {
      const std::string name = entry.name;
      impl_->places.emplace(name, Impl::FileEntry{std::move(entry), 0});
    }
  }
  for (const auto& [name, place] : impl_->places) impl_->names.push_back(name);
}

SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;

const std::vector<std::string>& SafetensorsFile::names() const { return impl_->names; }
bool SafetensorsFile::has(const std::string& name) const { return impl_->places.count(name) > 0; }
const std::map<std::string, std::string>& SafetensorsFile::metadata() const { return impl_->metadata; }

const SafetensorsEntry& SafetensorsFile::entry(const std::string& name) const {
  const auto found = impl_->places.find(name);
  if (found == impl_->places.end()) {
    fail(kSafetensors, "{}: no tensor '{}'", impl_->files.empty() ? "" : impl_->files[0].map->path().string(), name);
  }
  return found->second.entry;
}

std::string SafetensorsFile::where(const std::string& name) const {
  entry(name);
  return impl_->files[impl_->places.at(name).file].map->path().string();
}

void SafetensorsFile::forget(const std::string& name) const {
  const SafetensorsEntry& e = entry(name);
  const Impl::OpenFile& file = impl_->files[impl_->places.at(name).file];
  file.map->forget(file.data_start + e.begin, e.end - e.begin);
}

at::Tensor SafetensorsFile::tensor(const std::string& name) const {
  const SafetensorsEntry& e = entry(name);
  const Impl::OpenFile& file = impl_->files[impl_->places.at(name).file];
  const auto dtype = safetensors_dtype(e.dtype);
  if (!dtype) fail(kSafetensors, "{}: tensor '{}': dtype: {} is not supported", where(name), name, e.dtype);
  const auto options = at::TensorOptions().dtype(*dtype);
  if (e.begin == e.end) return at::empty(e.shape, options);
  auto* data = const_cast<std::byte*>(file.map->data()) + file.data_start + e.begin;
  if (reinterpret_cast<uintptr_t>(data) % at::elementSize(*dtype) != 0) {
    // The data of this tensor is not aligned for its dtype in the mapped file, so return an aligned copy.
    at::Tensor copy = at::empty(e.shape, options);
    std::memcpy(copy.mutable_data_ptr(), data, e.end - e.begin);
    return copy;
  }
  return at::from_blob(
      data, e.shape, [map = file.map](void*) {}, options);
}

std::map<std::string, at::Tensor> read_safetensors(const fs::path& path) {
  const SafetensorsFile file(path);
  std::map<std::string, at::Tensor> out;
  for (const std::string& name : file.names()) out.emplace(name, file.tensor(name).clone());
  return out;
}

}  // namespace lazy
