#include "model/safetensors_format.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include <fmt/ranges.h>

#include "core/error.h"
#include "core/text.h"

namespace lazy {
namespace {

using nlohmann::json;

// The maximum header length of the safetensors format. The check also prevents a large allocation if the length field
// is damaged.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;

// Shortens a value from the file for an error message.
std::string brief(const std::string& text) {
  const std::string out = to_valid_utf8(text.substr(0, 80));
  return text.size() > 80 ? out + "..." : out;
}

std::string brief(const json& value) {
  if (value.is_structured() && value.size() > 16) {
    return fmt::format("{} of {} items", value.is_array() ? "a list" : "an object", value.size());
  }
  return brief(value.dump(-1, ' ', false, json::error_handler_t::replace));
}

// Parses the JSON header. Rejects repeated keys and nesting deeper than the format allows.
json parse_header_json(std::string_view text, const std::string& file) {
  std::vector<std::set<std::string>> keys;
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start || event == json::parse_event_t::array_start) {
      if (depth > 2)
        fail(kSafetensors, "{}: header: the JSON nesting is deeper than three levels (tensor name, field, list)", file);
      if (event == json::parse_event_t::object_start) keys.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys.back().insert(key).second)
        fail(kSafetensors, "{}: header: the key '{}' appears twice", file, brief(key));
    }
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), watch);
  } catch (const json::exception& e) {
    // The message of the JSON library ends with the last token that it has read. The token may be long or binary, so
    // the message is shortened.
    fail(kSafetensors, "{}: header: expected JSON: {}", file, brief(std::string(e.what())));
  }
}

uint64_t unsigned_field(const json& value, const std::string& file, const std::string& name, const char* field) {
  if (!value.is_number_unsigned()) {
    fail(kSafetensors, "{}: tensor '{}': {}: expected non-negative integers, found {}", file, brief(name), field,
         brief(value));
  }
  return value.get<uint64_t>();
}

const json& list_field(const json& tensor, const std::string& file, const std::string& name, const char* field) {
  const auto found = tensor.find(field);
  if (found == tensor.end() || !found->is_array()) {
    fail(kSafetensors, "{}: tensor '{}': {}: expected a list, found {}", file, brief(name), field,
         found == tensor.end() ? "nothing" : brief(*found));
  }
  return *found;
}

std::string show_shape(const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

// Returns the number of bytes of a tensor from its dtype and shape. Every multiplication is checked for overflow,
// because an untrusted shape may claim 2^62 elements.
uint64_t expected_bytes(const SafetensorsEntry& entry, const std::string& file) {
  const int bits = safetensors_dtype_bits(entry.dtype);
  if (bits == 0)
    fail(kSafetensors, "{}: tensor '{}': dtype: unknown '{}'", file, brief(entry.name), brief(entry.dtype));
  uint64_t total = static_cast<uint64_t>(bits);
  bool overflow = false;
  for (const int64_t size : entry.shape) {
    overflow |= __builtin_mul_overflow(total, static_cast<uint64_t>(size), &total);
  }
  if (std::find(entry.shape.begin(), entry.shape.end(), 0) != entry.shape.end()) return 0;
  if (overflow || total % 8 != 0) {
    fail(kSafetensors, "{}: tensor '{}': shape: the size of {} {} is not a whole number of bytes below 2^61", file,
         brief(entry.name), brief(show_shape(entry.shape)), entry.dtype);
  }
  return total / 8;
}

SafetensorsEntry parse_entry(const std::string& name, const json& value, const std::string& file) {
  if (!value.is_object()) {
    fail(kSafetensors, "{}: tensor '{}': expected an object, found {}", file, brief(name), brief(value));
  }
  SafetensorsEntry entry;
  entry.name = name;
  const auto dtype = value.find("dtype");
  if (dtype == value.end() || !dtype->is_string()) {
    fail(kSafetensors, "{}: tensor '{}': dtype: expected a string, found {}", file, brief(name),
         dtype == value.end() ? "nothing" : brief(*dtype));
  }
  entry.dtype = dtype->get<std::string>();
  for (const json& size : list_field(value, file, name, "shape")) {
    const uint64_t n = unsigned_field(size, file, name, "shape");
    if (n > INT64_MAX)
      fail(kSafetensors, "{}: tensor '{}': shape: {} exceeds the limit 2^63 - 1", file, brief(name), n);
    entry.shape.push_back(static_cast<int64_t>(n));
  }
  const json& offsets = list_field(value, file, name, "data_offsets");
  if (offsets.size() != 2) {
    fail(kSafetensors, "{}: tensor '{}': data_offsets: expected [begin, end], found {}", file, brief(name),
         brief(offsets));
  }
  entry.begin = unsigned_field(offsets[0], file, name, "data_offsets");
  entry.end = unsigned_field(offsets[1], file, name, "data_offsets");
  if (entry.begin > entry.end) {
    fail(kSafetensors, "{}: tensor '{}': data_offsets: expected begin <= end, found [{}, {}]", file, brief(name),
         entry.begin, entry.end);
  }
  const uint64_t expected = expected_bytes(entry, file);
  if (entry.end - entry.begin != expected) {
    fail(kSafetensors, "{}: tensor '{}': data_offsets: expected {} bytes for {} {}, found {}", file, brief(name),
         expected, entry.dtype, brief(show_shape(entry.shape)), entry.end - entry.begin);
  }
  return entry;
}

// Returns the largest end offset of all tensors in the header. Invalid entries are ignored.
uint64_t described_bytes(const json& root) {
  uint64_t end = 0;
  for (const json& value : root) {
    const auto offsets = value.is_object() ? value.find("data_offsets") : value.end();
    if (!value.is_object() || offsets == value.end() || !offsets->is_array() || offsets->size() != 2) continue;
    if ((*offsets)[1].is_number_unsigned()) end = std::max(end, (*offsets)[1].get<uint64_t>());
  }
  return end;
}

void check_layout(const SafetensorsHeader& header, uint64_t data_bytes, const std::string& file) {
  uint64_t position = 0;
  for (const SafetensorsEntry& entry : header.entries) {
    if (entry.begin != position) {
      fail(kSafetensors,
           "{}: tensor '{}': data_offsets: expected to begin at {}, where the previous tensor ends, found {}", file,
           brief(entry.name), position, entry.begin);
    }
    position = entry.end;
  }
  if (position != data_bytes) {
    fail(kSafetensors, "{}: expected {} bytes of tensor data, found {}", file, position, data_bytes);
  }
}

}  // namespace

int safetensors_dtype_bits(std::string_view dtype) {
  static const std::map<std::string_view, int> bits = {
      {"BOOL", 8},    {"U8", 8},      {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F4", 4},
      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"I16", 16}, {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},
      {"U32", 32},    {"F32", 32},    {"I64", 64}, {"U64", 64},    {"F64", 64},    {"C64", 64}};
  const auto found = bits.find(dtype);
  return found == bits.end() ? 0 : found->second;
}

SafetensorsHeader parse_safetensors(std::string_view content, const std::string& file) {
  if (content.size() < 8) {
    fail(kSafetensors, "{}: expected 8 bytes of header length, found a file of {} bytes", file, content.size());
  }
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<unsigned char>(content[i]);
  if (length > content.size() - 8) {
    fail(kSafetensors,
         "{}: header length: expected at most {} (the bytes that follow it), found {}: the file is truncated or not a "
         "safetensors file",
         file, content.size() - 8, length);
  }
  if (length > kMaxHeaderBytes) {
    fail(kSafetensors, "{}: header length: expected at most {} bytes, found {}", file, kMaxHeaderBytes, length);
  }
  SafetensorsHeader header;
  header.data_start = 8 + length;
  const uint64_t data_bytes = content.size() - header.data_start;
  const json root = parse_header_json(content.substr(8, length), file);
  if (!root.is_object()) fail(kSafetensors, "{}: header: expected a JSON object, found {}", file, brief(root));
  if (const uint64_t described = described_bytes(root); described > data_bytes) {
    fail(kSafetensors, "{}: the file is truncated or damaged: expected {} bytes of tensor data, found {}", file,
         described, data_bytes);
  }
  for (const auto& [name, value] : root.items()) {
    if (name != "__metadata__") {
      header.entries.push_back(parse_entry(name, value, file));
      continue;
    }
    if (!value.is_object()) fail(kSafetensors, "{}: __metadata__: expected an object, found {}", file, brief(value));
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) {
        fail(kSafetensors, "{}: __metadata__: {}: expected a string, found {}", file, brief(key), brief(text));
      }
      header.metadata[key] = text.get<std::string>();
    }
  }
  std::sort(header.entries.begin(), header.entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  check_layout(header, data_bytes, file);
  return header;
}

std::string format_safetensors_header(const std::map<std::string, std::string>& metadata,
                                      const std::vector<SafetensorsEntry>& entries) {
  nlohmann::ordered_json root = nlohmann::ordered_json::object();
  if (!metadata.empty()) root["__metadata__"] = metadata;
  for (const SafetensorsEntry& entry : entries) {
    root[entry.name] = {{"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {entry.begin, entry.end}}};
  }
  std::string text = root.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string out(8, '\0');
  for (size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(static_cast<uint64_t>(text.size()) >> (8 * i));
  return out + text;
}

}  // namespace lazy
