// Unicode normalization form C, which the Qwen tokenizers apply.
#pragma once
#include <string>
#include <string_view>

namespace lazy {

// True when this build has NFC (libutf8proc was found).
bool has_nfc();
// `text` in NFC; bytes that are not valid UTF-8 stay as they are.
std::string to_nfc(std::string_view text);

}  // namespace lazy
