// Fuzzes the reader of safetensors files.
#include "model/safetensors_format.h"

#include "target.h"

using namespace lazy;

LAZY_FUZZ_TARGET(safetensors) {
  const SafetensorsHeader header = parse_safetensors(input, "model.safetensors");
  // In an accepted file, the tensors must cover the data exactly, so that code that maps the tensors never reads
  // outside of the file.
  uint64_t end = 0;
  for (const SafetensorsEntry& entry : header.entries) {
    unsigned __int128 bits = static_cast<unsigned>(safetensors_dtype_bits(entry.dtype));
    for (const int64_t size : entry.shape) bits = size == 0 || bits == 0 ? 0 : bits * static_cast<uint64_t>(size);
    fuzz::require(entry.begin == end && entry.end >= entry.begin, "tensors cover the data without gaps");
    fuzz::require(bits == static_cast<unsigned __int128>(entry.end - entry.begin) * 8,
                  "the number of bytes matches the shape");
    end = entry.end;
  }
  fuzz::require(header.data_start + end == input.size(), "the data ends where the file ends");
  // An accepted header must be the same after it has been written and read again.
  const std::string written = format_safetensors_header(header.metadata, header.entries);
  const SafetensorsHeader again =
      parse_safetensors(written + std::string(input.substr(header.data_start)), "written.safetensors");
  fuzz::require(again.metadata == header.metadata && again.entries.size() == header.entries.size(),
                "the header is unchanged after it was written and read again");
  for (size_t i = 0; i < again.entries.size(); ++i) {
    const SafetensorsEntry &a = again.entries[i], &b = header.entries[i];
    fuzz::require(a.name == b.name && a.dtype == b.dtype && a.shape == b.shape && a.begin == b.begin,
                  "each entry is unchanged after it was written and read again");
  }
}
