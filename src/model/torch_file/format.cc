#include "model/torch_file/format.h"

#include <cstdint>
#include <map>
#include <optional>

#include "core/error.h"
#include "core/text.h"
#include "model/safetensors_format.h"
#include "model/torch_file/pickle.h"

namespace lazy {

namespace {

// Record signatures of the zip format.
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

// A field of a directory entry, or of the extra field that replaces it for 64-bit values.
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

namespace {

using Kind = PickleValue::Kind;

std::string dtype_of(const std::string& global) {
  static const std::map<std::string, std::string> dtypes = {
      {"torch FloatStorage", "F32"},  {"torch HalfStorage", "F16"}, {"torch BFloat16Storage", "BF16"},
      {"torch DoubleStorage", "F64"}, {"torch LongStorage", "I64"}, {"torch IntStorage", "I32"},
      {"torch ShortStorage", "I16"},  {"torch CharStorage", "I8"},  {"torch ByteStorage", "U8"},
      {"torch BoolStorage", "BOOL"}};
  const auto found = dtypes.find(global);
  return found == dtypes.end() ? "" : found->second;
}

class Reader {
 public:
  Reader(std::string_view content, const std::string& file)
      : content_(content), file_(file), entries_(zip_entries(content, file)) {
    for (const auto& [name, bytes] : entries_) {
      if (name == "data.pkl" || name.ends_with("/data.pkl")) folder_ = name.substr(0, name.size() - 8);
    }
    const std::string_view* order = find("byteorder");
    if (order && *order != "little") fail(kTorchFile, "{}: byteorder: expected little, found another", file);
    const std::string_view* code = find("data.pkl");
    if (!code) fail(kTorchFile, "{}: expected an archive with data.pkl, found none", file);
    pickle_ = read_pickle(*code, file);
  }

  std::vector<TorchFileEntry> tensors() const {
    const PickleValue& root = pickle_.values[pickle_.root];
    if (root.kind != Kind::dict)
      fail(kTorchFile, "{}: expected a dict of tensors, found {}", file_, kind_name(root.kind));
    std::map<std::string, TorchFileEntry> by_name;  // a later value of a dict key replaces an earlier one
    for (size_t i = 0; i < root.items.size(); i += 2) {
      const PickleValue &key = at(root.items[i]), &value = at(root.items[i + 1]);
      if (key.kind != Kind::text)
        fail(kTorchFile, "{}: expected names of tensors, found {}", file_, kind_name(key.kind));
      if (value.kind != Kind::tensor) {
        fail(kTorchFile, "{}: {}: expected a tensor, found {}", file_, to_valid_utf8(key.text.substr(0, 80)),
             kind_name(value.kind));
      }
      by_name[key.text] = tensor(key.text, value);
    }
    std::vector<TorchFileEntry> out;
    for (auto& [name, entry] : by_name) out.push_back(std::move(entry));
    return out;
  }

 private:
  const PickleValue& at(uint32_t place) const { return pickle_.values[place]; }
  const std::string_view* find(const std::string& name) const {
    const auto found = entries_.find(folder_ + name);
    return found == entries_.end() ? nullptr : &found->second;
  }
  [[noreturn]] void wrong(const std::string& name, const std::string& why) const {
    fail(kTorchFile, "{}: tensor '{}': {}", file_, to_valid_utf8(name.substr(0, 80)), why);
  }

  std::vector<int64_t> sizes(const std::string& name, const PickleValue& v, const char* what) const {
    if (v.kind != Kind::tuple) wrong(name, fmt::format("{}: expected a tuple, found {}", what, kind_name(v.kind)));
    if (v.items.size() > 64)
      wrong(name, fmt::format("{}: expected at most 64 dimensions, found {}", what, v.items.size()));
    std::vector<int64_t> out;
    for (const uint32_t item : v.items) {
      if (at(item).kind != Kind::integer || at(item).number < 0)
        wrong(name, fmt::format("{}: expected integers of at least 0", what));
      out.push_back(at(item).number);
    }
    return out;
  }

  // Arguments: storage, offset, size, stride; the others are ignored.
  TorchFileEntry tensor(const std::string& name, const PickleValue& value) const {
    const PickleValue& v = at(value.items[0]);
    if (v.items.size() < 4 || at(v.items[0]).kind != Kind::storage || at(v.items[1]).kind != Kind::integer) {
      wrong(name, "expected a storage, an offset, sizes and strides");
    }
    const std::vector<uint32_t>& id = at(at(v.items[0]).items[0]).items;
    const auto is = [&](size_t place, Kind kind) { return at(id[place]).kind == kind; };
    if (id.size() < 5 || !is(0, Kind::text) || at(id[0]).text != "storage" || !is(1, Kind::global) ||
        !is(2, Kind::text) || !is(4, Kind::integer)) {
      wrong(name, "storage: expected ('storage', type, key, device, elements)");
    }
    TorchFileEntry entry;
    entry.name = name;
    entry.dtype = dtype_of(at(id[1]).text);
    if (entry.dtype.empty()) wrong(name, "storage: expected a type of storage");
    const std::string_view* storage = find("data/" + at(id[2]).text);
    if (!storage)
      wrong(name, fmt::format("storage: the archive has no data/{}", to_valid_utf8(at(id[2]).text.substr(0, 80))));
    const uint64_t bytes = static_cast<uint64_t>(safetensors_dtype_bits(entry.dtype)) / 8,
                   held = storage->size() / bytes;
    entry.shape = sizes(name, at(v.items[2]), "size");
    entry.strides = sizes(name, at(v.items[3]), "stride");
    if (entry.shape.size() != entry.strides.size()) wrong(name, "stride: expected one for each size");
    const int64_t offset = at(v.items[1]).number;
    const std::optional<uint64_t> extent = elements(entry);
    if (offset < 0 || !extent || static_cast<uint64_t>(offset) > held ||
        *extent > held - static_cast<uint64_t>(offset)) {
      wrong(name, fmt::format("expected to lie within its storage of {} elements, found offset {}, {} elements", held,
                              offset, extent ? std::to_string(*extent) : "more than 2^63"));
    }
    entry.elements = *extent;
    entry.begin = static_cast<uint64_t>(storage->data() - content_.data()) + static_cast<uint64_t>(offset) * bytes;
    return entry;
  }

  // The larger of the extent from the first to the last element and the number of elements; nullopt on overflow.
  // Counting both prevents a stride of 0 from expanding a small storage.
  std::optional<uint64_t> elements(const TorchFileEntry& entry) const {
    uint64_t extent = 1, count = 1;
    bool overflow = false;
    for (size_t i = 0; i < entry.shape.size(); ++i) {
      if (entry.shape[i] == 0) return 0;
      uint64_t step = 0;
      overflow |= __builtin_mul_overflow(static_cast<uint64_t>(entry.shape[i] - 1),
                                         static_cast<uint64_t>(entry.strides[i]), &step);
      overflow |= __builtin_add_overflow(extent, step, &extent);
      overflow |= __builtin_mul_overflow(count, static_cast<uint64_t>(entry.shape[i]), &count);
    }
    if (overflow || extent > INT64_MAX) return std::nullopt;
    return std::max(extent, count);
  }

  std::string_view content_;
  const std::string& file_;
  std::map<std::string, std::string_view> entries_;
  std::string folder_;
  Pickle pickle_;
};

}  // namespace

std::vector<TorchFileEntry> parse_torch_file(std::string_view content, const std::string& file) {
  if (!content.starts_with("PK")) {
    const bool older = content.starts_with("\x80\x02");
    fail(kTorchFile, "{}: expected the zip format of torch.save since PyTorch 1.6, found {}", file,
         older ? "the format before it: load it with PyTorch and save it again" : "something else");
  }
  return Reader(content, file).tensors();
}

}  // namespace lazy
