#include "data/tokenizers/normalizer.h"

#include <algorithm>
#include <cstdlib>

#ifdef LAZY_HAVE_UTF8PROC
#include <utf8proc.h>
#endif

#include "core/error.h"
#include "data/tokenizers/utf8.h"

namespace lazy {

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
  // Below U+0300 every character is its own NFC, and nothing there combines with what stands before it.
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
  fail_run("tokenizer", "this build has no NFC: install libutf8proc-dev and build again");
}

#endif

}  // namespace lazy
