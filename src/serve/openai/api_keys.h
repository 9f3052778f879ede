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
  ApiKeys() = default;  // no key is required: every client is accepted
  explicit ApiKeys(const std::vector<std::string>& keys);
  // Reads a file with one key per line. Empty lines and lines that begin with # are ignored. Throws Error if the file
  // has no key, or if a key has white space or control characters.
  static ApiKeys from_file(const std::filesystem::path& path);

  bool required() const { return !digests_.empty(); }
  // Returns whether the value of the Authorization header contains an accepted key, or true if no key is required. The
  // comparison takes the same time for all keys of equal length, so that the time does not reveal a part of an accepted
  // key.
  bool accepts(std::string_view authorization) const;

 private:
  using Digest = std::array<unsigned char, 32>;
  static Digest digest_of(std::string_view text);
  std::vector<Digest> digests_;
};

}  // namespace lazy::serve
