// A file of torch.save since PyTorch 1.6 that holds tensors by name: a zip archive of one pickle, which describes the
// tensors, and of the bytes of their storages.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/torch_file/zip.h"

namespace lazy {

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
