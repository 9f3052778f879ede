// Files in the form of torch.save, made by hand, sound ones and others.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace lazy::testing {

inline std::string little(uint64_t value, size_t size) {
  std::string out;
  for (size_t i = 0; i < size; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
  return out;
}

// An archive of entries stored as they are. With `wide` sizes and places are where PyTorch writes them: in extra fields
// of 64 bits.
inline std::string stored_zip(const std::vector<std::pair<std::string, std::string>>& entries, bool wide = false,
                              uint64_t method = 0) {
  const std::string zero2(2, '\0'), zero4(4, '\0'), all4(4, '\xff');
  std::string out, directory;
  for (const auto& [name, content] : entries) {
    const std::string size = little(content.size(), 4), sizes = wide ? all4 + all4 : size + size;
    const std::string extra = wide ? little(1, 2) + little(24, 2) + little(content.size(), 8) +
                                         little(content.size(), 8) + little(out.size(), 8)
                                   : "";
    const std::string common = zero2 + zero2 + little(method, 2) + zero4 + zero4 + sizes + little(name.size(), 2);
    directory += "PK\x01\x02" + zero2 + common + little(extra.size(), 2) + zero2 + zero2 + zero2 + zero4 +
                 (wide ? all4 : little(out.size(), 4)) + name + extra;
    out += "PK\x03\x04" + common + zero2 + name + content;
  }
  const uint64_t begin = out.size();
  out += directory;
  if (wide) {
    const uint64_t end = out.size();
    out += "PK\x06\x06" + little(44, 8) + zero4 + zero4 + zero4 + little(entries.size(), 8) +
           little(entries.size(), 8) + little(directory.size(), 8) + little(begin, 8);
    out += "PK\x06\x07" + zero4 + little(end, 8) + little(1, 4);
  }
  return out + "PK\x05\x06" + zero4 + little(wide ? 0xffff : entries.size(), 2) +
         little(wide ? 0xffff : entries.size(), 2) + (wide ? all4 : little(directory.size(), 4)) +
         (wide ? all4 : little(begin, 4)) + zero2;
}

// Opcodes of pickles.
inline std::string text(const std::string& s) { return "X" + little(s.size(), 4) + s; }
inline std::string integer(int64_t n) { return "\x8a\x08" + little(static_cast<uint64_t>(n), 8); }
inline std::string tuple(const std::vector<int64_t>& numbers) {
  std::string out = "(";
  for (const int64_t n : numbers) out += integer(n);
  return out + "t";
}
inline std::string global(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}

struct TensorPickle {
  std::string type = "FloatStorage", key = "0";
  int64_t elements = 6, offset = 0;
  std::vector<int64_t> size = {2, 3}, stride = {3, 1};
};

// name: tensor, as in a dict that is being filled.
inline std::string item(const std::string& name, const TensorPickle& t) {
  const std::string storage =
      "(" + text("storage") + global("torch", t.type) + text(t.key) + text("cpu") + integer(t.elements) + "tQ";
  return text(name) + global("torch._utils", "_rebuild_tensor_v2") + "(" + storage + integer(t.offset) + tuple(t.size) +
         tuple(t.stride) + "\x89" + global("collections", "OrderedDict") + ")RtR";
}
inline std::string dict_of(const std::string& items) { return "\x80\x02}(" + items + "u."; }

// 24 bytes of storage for one pickle.
inline std::string torch_file(const std::string& pickle, bool wide = false) {
  return stored_zip(
      {{"archive/data.pkl", pickle}, {"archive/byteorder", "little"}, {"archive/data/0", std::string(24, 'x')}}, wide);
}

}  // namespace lazy::testing
