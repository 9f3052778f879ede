#include "data/tokenizers/byte_unicode.h"

#include <array>
#include <cstdint>

namespace lazy {
namespace {

struct Tables {
  std::array<uint16_t, 256> character{};  // of each byte
  std::array<int16_t, 512> byte{};        // of each character below U+0200, or -1
  Tables() {
    byte.fill(-1);
    uint16_t next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool prints = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      character[b] = prints ? static_cast<uint16_t>(b) : next++;
      byte[character[b]] = static_cast<int16_t>(b);
    }
  }
};

const Tables& tables() {
  static const Tables instance;
  return instance;
}

}  // namespace

std::string bytes_to_printable(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    const uint16_t code = tables().character[static_cast<unsigned char>(c)];
    if (code < 0x80) {
      text += static_cast<char>(code);
    } else {
      text += static_cast<char>(0xC0 | code >> 6);
      text += static_cast<char>(0x80 | (code & 0x3F));
    }
  }
  return text;
}

std::optional<std::string> printable_to_bytes(std::string_view text) {
  std::string bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    uint32_t code = static_cast<unsigned char>(text[i]);
    if (code >= 0x80) {
      if ((code & 0xE0) != 0xC0 || i + 1 == text.size()) return std::nullopt;
      code = (code & 0x1F) << 6 | (static_cast<unsigned char>(text[++i]) & 0x3F);
    }
    if (code >= tables().byte.size() || tables().byte[code] < 0) return std::nullopt;
    bytes += static_cast<char>(tables().byte[code]);
  }
  return bytes;
}

}  // namespace lazy
