// Byte-level BPE writes its tokens in characters that can be printed: each of the 256 bytes has one. Bytes that print
// as Latin-1 stand for themselves; the others, in order, for U+0100 and up (a space is U+0120).
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace lazy {

std::string bytes_to_printable(std::string_view bytes);
// Nothing when the text holds a character that stands for no byte.
std::optional<std::string> printable_to_bytes(std::string_view text);

}  // namespace lazy
