// The format of torch.save since PyTorch 1.6: a zip archive with a pickle that describes the tensors, and the bytes of
// their storages. The parser accepts untrusted input: every offset and length is checked.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace lazy {

inline constexpr char kTorchFile[] = "pytorch file";  // operation name in error messages

// Name -> content, as views into `archive`; `file` names it in errors. Error for entries that are compressed,
// encrypted, or outside the file.
std::map<std::string, std::string_view> zip_entries(std::string_view archive, const std::string& file);

struct TorchFileEntry {
  std::string name;
  std::string dtype;                    // as safetensors names them: "F32", "BF16", ...
  std::vector<int64_t> shape, strides;  // strides in elements
  uint64_t begin = 0;                   // offset of element 0 in the file
  uint64_t elements = 0;                // number of elements spanned up to the last one, 0 for an empty tensor
};

// `content` is the whole file; `file` names it in errors. Error for files older than 1.6, for values other than
// tensors, for tensors outside their storages, and for storages outside the file.
std::vector<TorchFileEntry> parse_torch_file(std::string_view content, const std::string& file);

}  // namespace lazy
