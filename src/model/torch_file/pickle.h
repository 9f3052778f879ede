// A safe parser of Python pickles: the opcodes for plain values, and the three globals in files of tensors (storages,
// torch._utils._rebuild_tensor_v2, collections.OrderedDict). Nothing is called or imported; any other opcode or global
// is an error that names it.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lazy {

// One value of a Pickle. Values refer to each other by index.
struct PickleValue {
  enum class Kind {
    none,
    boolean,
    integer,
    real,
    text,
    tuple,
    list,
    dict,     // items: key, value, key, value, ...
    global,   // text: "module name"
    storage,  // items: one, the tuple of PyTorch's persistent id
    tensor,   // items: one, the argument tuple of _rebuild_tensor_v2
  };
  Kind kind = Kind::none;
  int64_t number = 0;  // of a boolean or an integer
  std::string text;
  std::vector<uint32_t> items;
};

const char* kind_name(PickleValue::Kind kind);

struct Pickle {
  std::vector<PickleValue> values;
  uint32_t root = 0;
};

// `content`: a pickle of protocol 2 to 5; `file` names it in errors.
Pickle read_pickle(std::string_view content, const std::string& file);

}  // namespace lazy
