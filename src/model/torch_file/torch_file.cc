#include "model/torch_file/torch_file.h"

#include <ATen/ATen.h>

#include <cstring>
#include <map>

#include "core/error.h"
#include "core/file.h"
#include "model/safetensors.h"
#include "model/torch_file/format.h"
#include "model/weight_map.h"
#include "model/weights_file.h"

namespace lazy {
namespace fs = std::filesystem;
namespace {

class TorchFile : public WeightsFile {
 public:
  explicit TorchFile(const fs::path& path) {
    if (path.extension() != ".json") {
      for (TorchFileEntry& entry : open(path)) add(std::move(entry));
    } else {
      for (const auto& [file, listed] : read_weight_map(path, kTorchFile)) {
        std::map<std::string, TorchFileEntry> held;
        for (TorchFileEntry& entry : open(path.parent_path() / file)) held.emplace(entry.name, std::move(entry));
        for (const std::string& name : listed) {
          const auto found = held.find(name);
          if (found == held.end())
            fail(kTorchFile, "{}: weight_map: {}: expected in {}, which does not hold it", path.string(), name, file);
          add(std::move(found->second));
        }
      }
    }
    for (const auto& [name, place] : places_) names_.push_back(name);
  }

  const std::vector<std::string>& names() const override { return names_; }
  WeightInfo info(const std::string& name) const override { return {place(name).entry.dtype, place(name).entry.shape}; }
  std::string where(const std::string& name) const override { return place(name).map->path().string(); }

  void forget(const std::string& name) const override {
    const auto& [entry, map] = place(name);
    map->forget(entry.begin, entry.elements * at::elementSize(*safetensors_dtype(entry.dtype)));
  }

  at::Tensor tensor(const std::string& name) const override {
    const auto& [entry, map] = place(name);
    const at::ScalarType dtype = *safetensors_dtype(entry.dtype);
    const auto options = at::TensorOptions().dtype(dtype);
    if (entry.elements == 0) return at::empty(entry.shape, options);
    auto* data = const_cast<std::byte*>(map->data()) + entry.begin;
    if (reinterpret_cast<uintptr_t>(data) % at::elementSize(dtype) != 0) {
      const at::Tensor copy = at::empty({static_cast<int64_t>(entry.elements)}, options);
      std::memcpy(copy.mutable_data_ptr(), data, entry.elements * at::elementSize(dtype));
      return copy.as_strided(entry.shape, entry.strides);
    }
    return at::from_blob(
        data, entry.shape, entry.strides, [map = map](void*) {}, options);
  }

 private:
  struct Place {
    TorchFileEntry entry;
    std::shared_ptr<MappedFile> map;
  };

  std::vector<TorchFileEntry> open(const fs::path& path) {
    latest_ = std::make_shared<MappedFile>(path);
    return parse_torch_file(latest_->view(), path.string());
  }
  void add(TorchFileEntry entry) {
    const std::string name = entry.name;
    places_.emplace(name, Place{std::move(entry), latest_});
  }
  const Place& place(const std::string& name) const {
    const auto found = places_.find(name);
    if (found == places_.end()) fail(kTorchFile, "{}: no tensor '{}'", latest_ ? latest_->path().string() : "", name);
    return found->second;
  }

  std::map<std::string, Place> places_;
  std::vector<std::string> names_;
  std::shared_ptr<MappedFile> latest_;  // the most recently opened file
};

}  // namespace

std::unique_ptr<WeightsFile> open_torch_file(const fs::path& path) { return std::make_unique<TorchFile>(path); }

}  // namespace lazy
