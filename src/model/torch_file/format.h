// Files of torch.save since PyTorch 1.6 that hold tensors by name: a zip archive with one pickle, which describes the
// tensors, and the bytes of their storages. Nothing is trusted: every offset and length is checked.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace lazy {

inline constexpr char kTorchFile[] = "pytorch file";  // the operation that errors name

// Name -> content, views of `archive`; `file` names it in errors. Error for what is compressed, encrypted, or does not
// lie within the file.
std::map<std::string, std::string_view> zip_entries(std::string_view archive, const std::string& file);

struct TorchFileEntry {
  std::string name;
  std::string dtype;                    // as safetensors names them: "F32", "BF16", ...
  std::vector<int64_t> shape, strides;  // strides in elements
  uint64_t begin = 0;                   // of element 0, in the file
  uint64_t elements = 0;                // from there to the last one, 0 for an empty tensor
};

// `content` is the whole file; `file` names it in errors. Error for the format before 1.6, for values other than
// tensors, and for tensors that do not lie within their storages, or storages that do not lie within the file.
std::vector<TorchFileEntry> parse_torch_file(std::string_view content, const std::string& file);

}  // namespace lazy
