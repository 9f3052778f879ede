#include "serve/openai/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>

#include "core/error.h"
#include "core/file.h"
#include "core/text.h"

namespace lazy::serve {

ApiKeys::ApiKeys(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) digests_.push_back(digest_of(key));
}

ApiKeys ApiKeys::from_file(const std::filesystem::path& path) {
  std::vector<std::string> keys;
  int number = 0;
  for (const std::string& line : split(read_file(path), '\n')) {
    ++number;
    const std::string key(strip(line));
    if (key.empty() || key.front() == '#') continue;
    if (std::any_of(key.begin(), key.end(), [](unsigned char c) { return c <= ' ' || c == 127; })) {
      fail("serve", "{}: line {}: expected one key without white space", path.string(), number);
    }
    keys.push_back(key);
  }
  if (keys.empty()) fail("serve", "{}: expected one key per line, found none", path.string());
  return ApiKeys(keys);
}

ApiKeys::Digest ApiKeys::digest_of(std::string_view text) {
  Digest out;
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), out.data());
  return out;
}

bool ApiKeys::accepts(std::string_view authorization) const {
  if (!required()) return true;
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() < kScheme.size()) return false;
  for (size_t i = 0; i < kScheme.size(); ++i) {
    const char letter = authorization[i];
    if ((letter >= 'A' && letter <= 'Z' ? letter + 32 : letter) != kScheme[i]) return false;
  }
  const Digest given = digest_of(strip(authorization.substr(kScheme.size())));
  bool found = false;
  for (const Digest& digest : digests_) {
    found |= CRYPTO_memcmp(given.data(), digest.data(), digest.size()) == 0;  // the loop always compares all keys
  }
  return found;
}

}  // namespace lazy::serve
