// SHA-256, for the hashes by which evaluation records name their documents and prompts.
#pragma once
#include <string>
#include <string_view>

namespace lazy {

std::string sha256_hex(std::string_view data);  // 64 lower-case hexadecimal digits

}  // namespace lazy
