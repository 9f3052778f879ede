// Reads TensorBoard event files with a decoder that shares no code with the writer: the checksums are computed bit by
// bit, and the messages are parsed by the Protocol Buffers wire format.
#pragma once
#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace lazy::train {

struct Event {
  double wall_time = 0;
  int64_t step = 0;
  std::string file_version;
  int session_status = 0;
  std::map<std::string, float> scalars;
};

namespace event_reader {

inline uint32_t masked_crc(std::string_view data) {
  uint32_t crc = ~0u;
  for (const char c : data) {
    crc ^= static_cast<uint8_t>(c);
    for (int i = 0; i < 8; ++i) crc = crc & 1 ? crc >> 1 ^ 0x82F63B78u : crc >> 1;
  }
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

template <typename T>
T take(std::string_view& in) {
  if (in.size() < sizeof(T)) throw std::runtime_error("event file: unexpected end");
  T value;
  std::memcpy(&value, in.data(), sizeof value);
  in.remove_prefix(sizeof value);
  return value;
}

inline std::string_view take_bytes(std::string_view& in, uint64_t n) {
  if (in.size() < n) throw std::runtime_error("event file: unexpected end");
  const std::string_view out = in.substr(0, n);
  in.remove_prefix(n);
  return out;
}

inline uint64_t varint(std::string_view& in) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const uint8_t byte = take<uint8_t>(in);
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
}

// Calls visit(field number, value, bytes) for each field of a Protocol Buffers message. `value` is the integer, the raw
// bits of a number, or the length of the bytes.
template <typename Visit>
void walk(std::string_view in, const Visit& visit) {
  while (!in.empty()) {
    const uint64_t key = varint(in);
    switch (key & 7) {
      case 0:
        visit(key >> 3, varint(in), std::string_view());
        break;
      case 1:
        visit(key >> 3, take<uint64_t>(in), std::string_view());
        break;
      case 2: {
        const uint64_t size = varint(in);
        visit(key >> 3, size, take_bytes(in, size));
        break;
      }
      case 5:
        visit(key >> 3, take<uint32_t>(in), std::string_view());
        break;
      default:
        throw std::runtime_error("event file: unknown wire type");
    }
  }
}

inline Event parse(std::string_view message) {
  Event event;
  walk(message, [&](uint64_t field, uint64_t bits, std::string_view bytes) {
    if (field == 1) std::memcpy(&event.wall_time, &bits, 8);
    if (field == 2) event.step = static_cast<int64_t>(bits);
    if (field == 3) event.file_version = bytes;
    if (field == 5) {
      walk(bytes, [&](uint64_t, uint64_t, std::string_view value) {
        std::string tag;
        float number = 0;
        walk(value, [&](uint64_t f, uint64_t raw, std::string_view text) {
          if (f == 1) tag = text;
          const uint32_t low = static_cast<uint32_t>(raw);
          if (f == 2) std::memcpy(&number, &low, 4);
        });
        event.scalars[tag] = number;
      });
    }
    if (field == 7)
      walk(bytes,
           [&](uint64_t, uint64_t status, std::string_view) { event.session_status = static_cast<int>(status); });
  });
  return event;
}

}  // namespace event_reader

inline std::vector<Event> read_events(std::string_view file) {
  using namespace event_reader;
  std::vector<Event> events;
  while (!file.empty()) {
    const std::string_view head = file.substr(0, 8);
    const uint64_t size = take<uint64_t>(file);
    if (take<uint32_t>(file) != masked_crc(head)) throw std::runtime_error("event file: wrong checksum of the length");
    const std::string_view data = take_bytes(file, size);
    if (take<uint32_t>(file) != masked_crc(data)) throw std::runtime_error("event file: wrong checksum of the data");
    events.push_back(parse(data));
  }
  return events;
}

}  // namespace lazy::train
