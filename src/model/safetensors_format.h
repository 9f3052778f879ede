// The safetensors container: 8 bytes of little-endian header length, a JSON header, then the tensors' bytes.
//   {"__metadata__": {"format": "pt"}, "NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
// Parsing here trusts nothing: every length, product and offset is checked before it is used.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace lazy {

inline constexpr char kSafetensors[] = "safetensors";  // the operation that errors name

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // "F32", "BF16", "I64", ... as the format names them
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes, relative to the start of the data
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<SafetensorsEntry> entries;  // in the order of their bytes
  uint64_t data_start = 0;                // offset of the data in the file
};

// Bits of one element, 0 if the format has no such dtype.
int safetensors_dtype_bits(std::string_view dtype);

// `content` is the whole file; `file` names it in errors. Error when the header does not fit, is no JSON object of the
// form above, repeats a name, when dtype x shape is not the length of the byte range, or when the ranges leave gaps,
// overlap or do not end where the file ends.
SafetensorsHeader parse_safetensors(std::string_view content, const std::string& file);

// The 8 bytes and the JSON, padded with spaces to a multiple of 8, for entries whose offsets are already set.
std::string format_safetensors_header(const std::map<std::string, std::string>& metadata,
                                      const std::vector<SafetensorsEntry>& entries);

}  // namespace lazy
