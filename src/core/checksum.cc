#include "core/checksum.h"

#include <openssl/evp.h>
#include <xxhash.h>

#include "core/error.h"

namespace lazy {

uint64_t checksum(const void* data, size_t size) { return XXH3_64bits(data, size); }

std::string sha256_hex(std::string_view data) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  if (EVP_Digest(data.data(), data.size(), digest, &size, EVP_sha256(), nullptr) != 1) {
    fail_run("sha256", "OpenSSL could not compute the digest");
  }
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) {
    hex += "0123456789abcdef"[digest[i] >> 4];
    hex += "0123456789abcdef"[digest[i] & 15];
  }
  return hex;
}

}  // namespace lazy
