// Hashes of bytes: XXH3 for the integrity of files and caches, SHA-256 for identifiers in evaluation records.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lazy {

// Returns the 64-bit XXH3 hash of the bytes.
uint64_t checksum(const void* data, size_t size);
inline uint64_t checksum(std::string_view data) { return checksum(data.data(), data.size()); }

std::string sha256_hex(std::string_view data);  // 64 lower-case hexadecimal digits

}  // namespace lazy
