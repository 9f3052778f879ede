#include "model/torch_file/format.h"

#include <map>
#include <optional>

#include "core/error.h"
#include "model/safetensors_format.h"
#include "model/torch_file/pickle.h"

namespace lazy {
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
    std::map<std::string, TorchFileEntry> by_name;  // a dict's later value takes the place of an earlier one
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

  // Arguments: storage, offset, size, stride, and others that do not matter here.
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

  // From the first to the last element; nothing when that overflows. No tensor is larger than what it is read from: a
  // stride of 0 must not make much of little.
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
