#include "model/torch_file/zip.h"

#include <cstdint>

#include "core/error.h"
#include "core/text.h"

namespace lazy {
namespace {

// The records of the format, by their first four bytes.
constexpr uint64_t kEntry = 0x04034b50, kDirectoryEntry = 0x02014b50, kEnd = 0x06054b50, kWideEnd = 0x06064b50,
                   kWideLocator = 0x07064b50;
constexpr size_t kEntrySize = 30, kDirectoryEntrySize = 46, kEndSize = 22, kWideEndSize = 56, kWideLocatorSize = 20;
constexpr size_t kLongestComment = 65535;

class Bytes {
 public:
  Bytes(std::string_view data, const std::string& file) : data_(data), file_(file) {}

  std::string_view part(uint64_t begin, uint64_t size, const char* what) const {
    if (begin > data_.size() || size > data_.size() - begin) {
      fail(kTorchFile, "{}: {}: expected {} bytes from {} on, found a file of {}: truncated or damaged", file_, what,
           size, begin, data_.size());
    }
    return data_.substr(begin, size);
  }
  // A little-endian number of `size` bytes.
  uint64_t number(uint64_t begin, size_t size, const char* what) const {
    uint64_t value = 0;
    const std::string_view bytes = part(begin, size, what);
    for (size_t i = size; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
    return value;
  }
  uint64_t size() const { return data_.size(); }
  [[noreturn]] void damaged(const char* what) const {
    fail(kTorchFile, "{}: {}: the zip archive is damaged", file_, what);
  }

 private:
  std::string_view data_;
  const std::string& file_;
};

struct Directory {
  uint64_t begin = 0, entries = 0;
};

Directory find_directory(const Bytes& bytes) {
  const uint64_t size = bytes.size();
  uint64_t end = size - kEndSize;
  const uint64_t lowest = end > kLongestComment ? end - kLongestComment : 0;
  while (bytes.number(end, 4, "end of the directory") != kEnd) {
    if (end == lowest) bytes.damaged("end of the directory");
    --end;
  }
  Directory directory{bytes.number(end + 16, 4, "directory"), bytes.number(end + 10, 2, "directory")};
  if (end < kWideLocatorSize || bytes.number(end - kWideLocatorSize, 4, "directory") != kWideLocator) return directory;
  const uint64_t wide = bytes.number(end - kWideLocatorSize + 8, 8, "directory");
  bytes.part(wide, kWideEndSize, "end of the directory");
  if (bytes.number(wide, 4, "end of the directory") != kWideEnd) bytes.damaged("end of the directory");
  return {bytes.number(wide + 48, 8, "directory"), bytes.number(wide + 32, 8, "directory")};
}

// A field of the directory's entry, or of the extra field that takes its place where it needs 64 bits.
struct Sizes {
  uint64_t stored = 0, full = 0, begin = 0;
};

Sizes read_sizes(const Bytes& bytes, uint64_t at, uint64_t extra, uint64_t extra_size) {
  Sizes sizes{bytes.number(at + 20, 4, "entry"), bytes.number(at + 24, 4, "entry"), bytes.number(at + 42, 4, "entry")};
  const uint64_t last = extra + extra_size;
  while (last - extra >= 4) {
    const uint64_t kind = bytes.number(extra, 2, "extra field"), size = bytes.number(extra + 2, 2, "extra field");
    extra += 4;
    if (size > last - extra) bytes.damaged("extra field");
    if (kind == 1) {
      uint64_t place = extra;
      for (uint64_t* field : {&sizes.full, &sizes.stored, &sizes.begin}) {
        if (*field != 0xffffffff) continue;
        if (place + 8 > extra + size) bytes.damaged("extra field");
        *field = bytes.number(place, 8, "extra field");
        place += 8;
      }
    }
    extra += size;
  }
  return sizes;
}

}  // namespace

std::map<std::string, std::string_view> zip_entries(std::string_view archive, const std::string& file) {
  const Bytes bytes(archive, file);
  if (archive.size() < kEndSize) bytes.damaged("end of the directory");
  const Directory directory = find_directory(bytes);
  std::map<std::string, std::string_view> out;
  uint64_t at = directory.begin;
  for (uint64_t n = 0; n < directory.entries; ++n) {
    bytes.part(at, kDirectoryEntrySize, "directory");
    if (bytes.number(at, 4, "directory") != kDirectoryEntry) bytes.damaged("directory");
    const uint64_t name_size = bytes.number(at + 28, 2, "entry"), extra_size = bytes.number(at + 30, 2, "entry");
    const std::string name(bytes.part(at + kDirectoryEntrySize, name_size, "name of an entry"));
    const uint64_t extra = at + kDirectoryEntrySize + name_size;
    bytes.part(extra, extra_size, "extra field");
    const Sizes sizes = read_sizes(bytes, at, extra, extra_size);
    const bool encrypted = bytes.number(at + 8, 2, "entry") & 1;
    const uint64_t method = bytes.number(at + 10, 2, "entry");
    if (encrypted || method != 0 || sizes.stored != sizes.full) {
      fail(
          kTorchFile, "{}: {}: expected an entry that is stored as it is, found {}", file,
          to_valid_utf8(name.substr(0, 80)),
          encrypted ? "an encrypted one" : fmt::format("method {}, {} bytes for {}", method, sizes.stored, sizes.full));
    }
    bytes.part(sizes.begin, kEntrySize, "entry");
    if (bytes.number(sizes.begin, 4, "entry") != kEntry) bytes.damaged("entry");
    const uint64_t header =
        kEntrySize + bytes.number(sizes.begin + 26, 2, "entry") + bytes.number(sizes.begin + 28, 2, "entry");
    bytes.part(sizes.begin, header, "entry");
    if (!out.emplace(name, bytes.part(sizes.begin + header, sizes.full, "content of an entry")).second) {
      fail(kTorchFile, "{}: {}: appears twice", file, to_valid_utf8(name.substr(0, 80)));
    }
    at = extra + extra_size + bytes.number(at + 32, 2, "entry");
  }
  return out;
}

}  // namespace lazy
