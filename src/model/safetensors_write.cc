// Writes safetensors files, either single files or shards with an index.
#include <ATen/ATen.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/file.h"
#include "model/safetensors.h"

namespace lazy {
namespace fs = std::filesystem;
namespace {

const char* format_dtype(at::ScalarType type, const std::string& name) {
  switch (type) {
    case at::kBool:
      return "BOOL";
    case at::kByte:
      return "U8";
    case at::kChar:
      return "I8";
    case at::kShort:
      return "I16";
    case at::kUInt16:
      return "U16";
    case at::kInt:
      return "I32";
    case at::kUInt32:
      return "U32";
    case at::kLong:
      return "I64";
    case at::kUInt64:
      return "U64";
    case at::kHalf:
      return "F16";
    case at::kBFloat16:
      return "BF16";
    case at::kFloat:
      return "F32";
    case at::kDouble:
      return "F64";
    case at::kComplexFloat:
      return "C64";
    case at::kFloat8_e5m2:
      return "F8_E5M2";
    case at::kFloat8_e4m3fn:
      return "F8_E4M3";
    case at::kFloat8_e8m0fnu:
      return "F8_E8M0";
    default:
      fail(kSafetensors, "tensor '{}': dtype {} is not supported by the format", name, at::toString(type));
  }
}

std::string numbered(const std::string& stem, size_t index, size_t count) {
  return fmt::format("{}-{:05}-of-{:05}.safetensors", stem, index, count);
}

void remove_shards(const fs::path& directory, const std::string& stem, size_t keep_count) {
  for (const auto& item : fs::directory_iterator(directory)) {
    const std::string name = item.path().filename().string();
    const bool shard =
        name.size() == stem.size() + 27 && name.rfind(stem + "-", 0) == 0 && item.path().extension() == ".safetensors";
    if (shard && name.substr(stem.size() + 10) != fmt::format("{:05}.safetensors", keep_count)) fs::remove(item.path());
  }
}

}  // namespace

void write_safetensors(const fs::path& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsEntry> entries;
  std::set<std::string> seen;
  uint64_t position = 0;
  // Tensors are ordered by decreasing element size, so that each one is aligned for its dtype (the header is padded to
  // 8 bytes).
  std::vector<size_t> order(tensors.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return tensors[a].second.element_size() > tensors[b].second.element_size();
  });
  for (const size_t i : order) {
    const auto& [name, tensor] = tensors[i];
    if (!seen.insert(name).second) fail(kSafetensors, "{}: tensor '{}' is given twice", path.string(), name);
    if (name == "__metadata__")
      fail(kSafetensors, "{}: '{}' is reserved and cannot be used as a tensor name", path.string(), name);
    const uint64_t bytes = static_cast<uint64_t>(tensor.numel()) * tensor.element_size();
    entries.push_back(
        {name, format_dtype(tensor.scalar_type(), name), tensor.sizes().vec(), position, position + bytes});
    position += bytes;
  }
  const std::string header = format_safetensors_header(metadata, entries);
  write_file_atomic(path, [&](FileWriter& writer) {
    writer.write(header);
    for (const size_t i : order) {
      const at::Tensor& tensor = tensors[i].second;
      const at::Tensor plain =
          tensor.detach().to(at::kCPU).contiguous();  // one tensor at a time, to avoid a second copy of the model
      writer.write(plain.const_data_ptr(), static_cast<size_t>(plain.numel()) * plain.element_size());
    }
  });
}

void write_safetensors_sharded(const fs::path& directory, const std::string& stem, const NamedTensors& tensors,
                               uint64_t max_file_bytes) {
  std::vector<NamedTensors> files(1);
  uint64_t in_file = 0, total = 0;
  for (const auto& [name, tensor] : tensors) {
    const uint64_t bytes = static_cast<uint64_t>(tensor.numel()) * tensor.element_size();
    if (in_file > 0 && in_file + bytes > max_file_bytes) {
      files.emplace_back();
      in_file = 0;
    }
    files.back().emplace_back(name, tensor);
    in_file += bytes;
    total += bytes;
  }
  const fs::path single = directory / (stem + ".safetensors"), index = directory / (stem + ".safetensors.index.json");
  if (files.size() == 1) {
    write_safetensors(single, files[0]);
    fs::remove(index);
    remove_shards(directory, stem, 0);
    return;
  }
  nlohmann::ordered_json root = {{"metadata", {{"total_size", total}}},
                                 {"weight_map", nlohmann::ordered_json::object()}};
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string name = numbered(stem, i + 1, files.size());
    write_safetensors(directory / name, files[i]);
    for (const auto& [tensor_name, tensor] : files[i]) root["weight_map"][tensor_name] = name;
  }
  write_file_atomic(index, root.dump(2) + "\n");
  fs::remove(single);
  remove_shards(directory, stem, files.size());
}

}  // namespace lazy
