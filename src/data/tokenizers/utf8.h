// Validity of UTF-8, character by character.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lazy {

// Bytes of the well-formed character at `at`, or 0: no overlong forms, no surrogates, nothing above U+10FFFF.
inline size_t utf8_length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto continues = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const unsigned lead = byte(at);
  if (lead < 0x80) return 1;
  if (lead < 0xC2) return 0;
  if (lead < 0xE0) return continues(at + 1) ? 2 : 0;
  const unsigned second = byte(at + 1);
  if (lead < 0xF0) {
    if (second < (lead == 0xE0 ? 0xA0u : 0x80u) || second > (lead == 0xED ? 0x9Fu : 0xBFu)) return 0;
    return continues(at + 2) ? 3 : 0;
  }
  if (lead > 0xF4 || second < (lead == 0xF0 ? 0x90u : 0x80u) || second > (lead == 0xF4 ? 0x8Fu : 0xBFu)) return 0;
  return continues(at + 2) && continues(at + 3) ? 4 : 0;
}

}  // namespace lazy
