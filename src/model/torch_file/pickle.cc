#include "model/torch_file/pickle.h"

#include <unordered_map>

#include "core/error.h"
#include "model/torch_file/format.h"

namespace lazy {
namespace {

using Kind = PickleValue::Kind;

// Enough for a model with 10^5 tensors. A parsed value takes more memory than its bytes in the file.
constexpr size_t kMostBytes = size_t{8} << 20;

bool is_known(const std::string& global) {
  for (const char* known :
       {"collections OrderedDict", "torch._utils _rebuild_tensor_v2", "torch FloatStorage", "torch HalfStorage",
        "torch BFloat16Storage", "torch DoubleStorage", "torch LongStorage", "torch IntStorage", "torch ShortStorage",
        "torch CharStorage", "torch ByteStorage", "torch BoolStorage"}) {
    if (global == known) return true;
  }
  return false;
}

class Machine {
 public:
  Machine(std::string_view code, const std::string& file) : code_(code), file_(file) {}

  Pickle run() {
    while (true) {
      const auto opcode = static_cast<unsigned char>(take(1)[0]);
      if (opcode == '.') break;
      step(opcode);
    }
    pickle_.root = pop();
    if (!stack_.empty() || !marks_.empty()) damaged("more than one value is left");
    return std::move(pickle_);
  }

 private:
  [[noreturn]] void damaged(const char* why) const { fail(kTorchFile, "{}: byte {}: {}", file_, at_, why); }

  std::string_view take(uint64_t size) {
    if (size > code_.size() - at_) damaged("the pickle ends before its last value");
    const std::string_view bytes = code_.substr(at_, size);
    at_ += size;
    return bytes;
  }
  uint64_t number(size_t size) {
    uint64_t value = 0;
    const std::string_view bytes = take(size);
    for (size_t i = size; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
    return value;
  }
  std::string line() {
    const size_t end = code_.find('\n', at_);
    if (end == std::string_view::npos) damaged("a name without an end");
    std::string text(take(end - at_));
    take(1);
    return text;
  }

  PickleValue& value(uint32_t place) { return pickle_.values[place]; }
  void push(PickleValue v) {
    stack_.push_back(static_cast<uint32_t>(pickle_.values.size()));
    pickle_.values.push_back(std::move(v));
  }
  void push(Kind kind, int64_t n = 0) { push(PickleValue{kind, n, {}, {}}); }
  uint32_t pop() {
    if (stack_.empty() || (!marks_.empty() && stack_.size() <= marks_.back()))
      damaged("an opcode finds no value to work on");
    const uint32_t place = stack_.back();
    stack_.pop_back();
    return place;
  }
  uint32_t top(Kind kind) {
    const uint32_t place = pop();
    stack_.push_back(place);
    if (value(place).kind != kind) damaged(kind == Kind::dict ? "expected a dict to fill" : "expected a list to fill");
    return place;
  }
  std::vector<uint32_t> pop_to_mark() {
    if (marks_.empty()) damaged("an opcode finds no mark");
    std::vector<uint32_t> items(stack_.begin() + static_cast<long>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }
  void fill(Kind kind, const std::vector<uint32_t>& items) {
    if (kind == Kind::dict && items.size() % 2 != 0) damaged("a key without a value");
    std::vector<uint32_t>& all = value(top(kind)).items;
    all.insert(all.end(), items.begin(), items.end());
  }
  void tuple_of(size_t count) {
    PickleValue v{Kind::tuple, 0, {}, std::vector<uint32_t>(count)};
    while (count-- > 0) v.items[count] = pop();
    push(std::move(v));
  }

  void global(const std::string& name) {
    if (!is_known(name)) {
      fail(kTorchFile, "{}: global '{}': expected tensors and plain values, nothing else is run or imported", file_,
           to_valid_utf8(name.substr(0, 120)));
    }
    push(PickleValue{Kind::global, 0, name, {}});
  }
  void persistent_id() {
    const uint32_t id = pop();
    if (value(id).kind != Kind::tuple) damaged("persistent id: expected a tuple that begins with 'storage'");
    push(PickleValue{Kind::storage, 0, {}, {id}});
  }
  void reduce() {
    const uint32_t arguments = pop(), function = pop();
    if (value(arguments).kind != Kind::tuple || value(function).kind != Kind::global)
      damaged("REDUCE: expected a global and a tuple");
    const std::string& name = value(function).text;
    if (name == "torch._utils _rebuild_tensor_v2") {
      push(PickleValue{Kind::tensor, 0, {}, {arguments}});
    } else if (name == "collections OrderedDict" && value(arguments).items.empty()) {
      push(Kind::dict);
    } else {
      fail(kTorchFile, "{}: REDUCE: '{}' with {} arguments is not called", file_, name, value(arguments).items.size());
    }
  }
  // The attributes of a state dict (_metadata) do not affect its tensors.
  void build() {
    pop();
    top(Kind::dict);
  }

  void remember(uint64_t key) {
    const uint32_t place = pop();
    stack_.push_back(place);
    memo_[key] = place;
  }
  void recall(uint64_t key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) damaged("a value is used before it is there");
    stack_.push_back(found->second);
  }

  void text(uint64_t size) { push(PickleValue{Kind::text, 0, std::string(take(size)), {}}); }
  void long_integer() {
    const uint64_t size = number(1);
    if (size > 8) damaged("LONG1: expected at most 64 bits");
    uint64_t n = number(size);
    if (size > 0 && size < 8 && n >> (8 * size - 1) & 1) n |= ~uint64_t{0} << (8 * size);
    push(Kind::integer, static_cast<int64_t>(n));
  }

  void step(unsigned char opcode) {
    switch (opcode) {
      case 0x80: {  // PROTO
        if (const uint64_t protocol = number(1); protocol < 2 || protocol > 5) damaged("expected protocol 2 to 5");
        return;
      }
      case 0x95:
        take(8);
        return;  // FRAME
      case '(':
        marks_.push_back(stack_.size());
        return;
      case 'N':
        return push(Kind::none);
      case 0x88:
        return push(Kind::boolean, 1);
      case 0x89:
        return push(Kind::boolean, 0);
      case 'J':
        return push(Kind::integer, static_cast<int32_t>(number(4)));
      case 'K':
        return push(Kind::integer, static_cast<int64_t>(number(1)));
      case 'M':
        return push(Kind::integer, static_cast<int64_t>(number(2)));
      case 0x8a:
        return long_integer();
      case 'G':
        take(8);
        return push(Kind::real);  // the value is not needed
      case 'X':
        return text(number(4));  // BINUNICODE
      case 0x8c:
        return text(number(1));  // SHORT_BINUNICODE
      case ')':
        return push(Kind::tuple);
      case ']':
        return push(Kind::list);
      case '}':
        return push(Kind::dict);
      case 0x85:
        return tuple_of(1);
      case 0x86:
        return tuple_of(2);
      case 0x87:
        return tuple_of(3);
      case 't': {
        std::vector<uint32_t> items = pop_to_mark();
        return push(PickleValue{Kind::tuple, 0, {}, std::move(items)});
      }
      case 'a': {
        const uint32_t item = pop();
        return fill(Kind::list, {item});
      }
      case 'e':
        return fill(Kind::list, pop_to_mark());
      case 's': {
        const uint32_t item = pop(), key = pop();
        return fill(Kind::dict, {key, item});
      }
      case 'u':
        return fill(Kind::dict, pop_to_mark());
      case 'q':
        return remember(number(1));
      case 'r':
        return remember(number(4));
      case 0x94:
        return remember(memo_.size());  // MEMOIZE
      case 'h':
        return recall(number(1));
      case 'j':
        return recall(number(4));
      case 'c': {
        const std::string module = line();
        return global(module + " " + line());
      }
      case 0x93: {  // STACK_GLOBAL
        const uint32_t name = pop(), module = pop();
        if (value(name).kind != Kind::text || value(module).kind != Kind::text)
          damaged("STACK_GLOBAL: expected two names");
        return global(value(module).text + " " + value(name).text);
      }
      case 'Q':
        return persistent_id();
      case 'R':
        return reduce();
      case 'b':
        return build();
      default:
        fail(kTorchFile, "{}: byte {}: opcode 0x{:02x}: expected one of those that build plain values and tensors",
             file_, at_ - 1, opcode);
    }
  }

  std::string_view code_;
  const std::string& file_;
  size_t at_ = 0;
  Pickle pickle_;
  std::vector<uint32_t> stack_;
  std::vector<size_t> marks_;  // stack heights
  std::unordered_map<uint64_t, uint32_t> memo_;
};

}  // namespace

const char* kind_name(Kind kind) {
  static constexpr const char* names[] = {"None",   "a boolean", "an integer", "a float",   "a string", "a tuple",
                                          "a list", "a dict",    "a global",   "a storage", "a tensor"};
  return names[static_cast<size_t>(kind)];
}

Pickle read_pickle(std::string_view content, const std::string& file) {
  if (content.size() > kMostBytes)
    fail(kTorchFile, "{}: expected a pickle of at most {} bytes, found {}", file, kMostBytes, content.size());
  return Machine(content, file).run();
}

}  // namespace lazy
