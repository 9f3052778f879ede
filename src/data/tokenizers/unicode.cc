#include "data/tokenizers/unicode.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#ifdef LAZY_HAVE_UTF8PROC
#include <utf8proc.h>
#endif

#include "core/error.h"

namespace lazy {

namespace {

struct Tables {
  std::array<uint16_t, 256> character{};  // printable character that represents each byte
  std::array<int16_t, 512> byte{};        // byte that each character below U+0200 represents, or -1
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

#ifdef LAZY_HAVE_UTF8PROC

namespace {

void append_nfc(std::string& out, std::string_view valid) {
  utf8proc_uint8_t* composed = nullptr;
  const auto length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(valid.data()), static_cast<utf8proc_ssize_t>(valid.size()),
                   &composed, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  if (length < 0) fail_run("tokenizer", "NFC: {}", utf8proc_errmsg(length));
  out.append(reinterpret_cast<const char*>(composed), static_cast<size_t>(length));
  std::free(composed);
}

}  // namespace

bool has_nfc() { return true; }

std::string to_nfc(std::string_view text) {
  // Below U+0300 (lead byte 0xCC) every character is already in NFC and does not combine with the previous character.
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0xCC; })) {
    return std::string(text);
  }
  std::string out;
  size_t at = 0;
  while (at < text.size()) {
    size_t end = at, length;
    while (end < text.size() && (length = utf8_length(text, end)) > 0) end += length;
    if (end > at) append_nfc(out, text.substr(at, end - at));
    at = end;
    while (at < text.size() && utf8_length(text, at) == 0) out += text[at++];
  }
  return out;
}

#else

bool has_nfc() { return false; }
std::string to_nfc(std::string_view) {
  fail_run("tokenizer", "this build does not support NFC: install libutf8proc-dev and rebuild");
}

#endif

}  // namespace lazy
