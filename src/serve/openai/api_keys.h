// API keys that clients send as "Authorization: Bearer KEY".
#pragma once
#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace lazy::serve {

class ApiKeys {
 public:
  ApiKeys() = default;  // without keys, every client is accepted
  explicit ApiKeys(const std::vector<std::string>& keys);
  // Reads a file with one key per line. Empty lines and lines that begin with # are ignored. Throws Error if the file
  // has no key, or if a key has white space or control characters.
  static ApiKeys from_file(const std::filesystem::path& path);

  bool required() const { return !digests_.empty(); }
  // Compares in constant time, so that wrong keys of equal length take equal time.
  bool accepts(std::string_view authorization) const;

 private:
  using Digest = std::array<unsigned char, 32>;
  static Digest digest_of(std::string_view text);
  std::vector<Digest> digests_;
};

}  // namespace lazy::serve
