// The safetensors container format: 8 bytes of little-endian header length, a JSON header, then the tensor data.
//  {"__metadata__": {"format": "pt"}, "NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
// The parser accepts untrusted input: every length, product and offset is checked before it is used.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace lazy {

inline constexpr char kSafetensors[] = "safetensors";  // operation name in error messages

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // name in the format: "F32", "BF16", "I64", ...
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // byte range, relative to the start of the data
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<SafetensorsEntry> entries;  // ordered by position in the data
  uint64_t data_start = 0;                // offset of the data in the file
};

// Returns the number of bits of one element, or 0 for an unknown dtype.
int safetensors_dtype_bits(std::string_view dtype);

// Parses the header of a file. `content` is the whole file; `file` names it in errors. Throws an Error in these cases:
// the header is truncated or is not a JSON object of the form above, a name repeats, the byte range of a tensor does
// not match dtype and shape, or the ranges have gaps, overlap or do not end at the end of the file.
SafetensorsHeader parse_safetensors(std::string_view content, const std::string& file);

// Returns the length prefix and the JSON header, padded with spaces to a multiple of 8 bytes. `begin` and `end` of all
// `entries` must be set.
std::string format_safetensors_header(const std::map<std::string, std::string>& metadata,
                                      const std::vector<SafetensorsEntry>& entries);

}  // namespace lazy
