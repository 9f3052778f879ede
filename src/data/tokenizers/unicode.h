// Functions for UTF-8, for the printable characters that represent bytes in byte-level BPE, and for Unicode
// normalization (NFC).
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lazy {

// Returns the number of bytes of the well-formed character at `at`, or 0. Overlong forms, surrogates and values above
// U+10FFFF are not well-formed.
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

// Returns the code point of the well-formed character at `at`.
inline uint32_t utf8_code_point(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(text[i])); };
  const uint32_t lead = byte(at);
  if (lead < 0x80) return lead;
  if (lead < 0xE0) return (lead & 0x1F) << 6 | (byte(at + 1) & 0x3F);
  if (lead < 0xF0) return (lead & 0x0F) << 12 | (byte(at + 1) & 0x3F) << 6 | (byte(at + 2) & 0x3F);
  return (lead & 0x07) << 18 | (byte(at + 1) & 0x3F) << 12 | (byte(at + 2) & 0x3F) << 6 | (byte(at + 3) & 0x3F);
}

// Encodes a code point, which must not be a surrogate or above U+10FFFF.
inline std::string utf8_encode(uint32_t code) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | (code >> shift & 0x3F)); };
  if (code < 0x80) return {static_cast<char>(code)};
  if (code < 0x800) return {static_cast<char>(0xC0 | code >> 6), tail(0)};
  if (code < 0x10000) return {static_cast<char>(0xE0 | code >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xF0 | code >> 18), tail(12), tail(6), tail(0)};
}

// Returns the spelling of a token in the files of byte-level BPE, which use one printable character per byte. Bytes
// that are printable in Latin-1 represent themselves. All other bytes are mapped in order to U+0100 and above (a space
// is U+0120).
std::string bytes_to_printable(std::string_view bytes);
// The inverse of bytes_to_printable(). Returns nullopt if the text contains a character that does not represent a byte.
std::optional<std::string> printable_to_bytes(std::string_view text);

// Whether this build supports NFC (libutf8proc was found). The Qwen tokenizers need it.
bool has_nfc();
// Converts `text` to normalization form C. Bytes that are not valid UTF-8 are not changed.
std::string to_nfc(std::string_view text);

}  // namespace lazy
