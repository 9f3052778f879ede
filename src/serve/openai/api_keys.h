// The keys that clients present as "Authorization: Bearer KEY".
#pragma once
#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace lazy::serve {

class ApiKeys {
 public:
  ApiKeys() = default;  // none: every client is let in
  explicit ApiKeys(const std::vector<std::string>& keys);
  // One key a line; empty lines and lines that begin with # do not count. Error when there is no key, or when a key has
  // white space or control characters.
  static ApiKeys from_file(const std::filesystem::path& path);

  bool required() const { return !digests_.empty(); }
  // Takes the same time for every wrong key of one length.
  bool accepts(std::string_view authorization) const;

 private:
  using Digest = std::array<unsigned char, 32>;
  static Digest digest_of(std::string_view text);
  std::vector<Digest> digests_;
};

}  // namespace lazy::serve
