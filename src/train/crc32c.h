// CRC-32C (Castagnoli, RFC 3720), the checksum of TFRecord files. zlib's crc32 is another polynomial.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

namespace lazy::train {

inline uint32_t crc32c(std::string_view data) {
  static constexpr auto kTable = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) ? 0x82F63B78u : 0u);
      table[i] = value;
    }
    return table;
  }();
  uint32_t crc = 0xFFFFFFFFu;
  for (const char c : data) crc = kTable[(crc ^ static_cast<uint8_t>(c)) & 0xFF] ^ (crc >> 8);
  return ~crc;
}

// A CRC over data that itself contains CRCs is weak, so TFRecord stores it rotated and shifted.
inline uint32_t masked_crc32c(std::string_view data) {
  const uint32_t crc = crc32c(data);
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

}  // namespace lazy::train
