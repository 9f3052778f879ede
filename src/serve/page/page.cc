#include "serve/page/page.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <string_view>

#include "embedded_page.h"

namespace lazy::serve {

namespace {

// Returns the Content-Security-Policy source 'sha256-...' for the text of an element.
std::string source_hash(std::string_view text) {
  unsigned char digest[EVP_MAX_MD_SIZE], base64[2 * EVP_MAX_MD_SIZE];
  unsigned size = 0;
  EVP_Digest(text.data(), text.size(), digest, &size, EVP_sha256(), nullptr);
  const int length = EVP_EncodeBlock(base64, digest, static_cast<int>(size));
  return fmt::format("'sha256-{}'",
                     std::string_view(reinterpret_cast<const char*>(base64), static_cast<size_t>(length)));
}

// Returns the content of the only element of the page with this tag name.
std::string_view element(std::string_view name) {
  const std::string_view page = kPage;
  const std::string open = fmt::format("<{}>", name), close = fmt::format("</{}>", name);
  const size_t begin = page.find(open) + open.size();
  return page.substr(begin, page.find(close, begin) - begin);
}

std::string policy() {
  return fmt::format(
      "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; img-src data:; base-uri 'none'; "
      "form-action 'none'; frame-ancestors 'none'",
      source_hash(element("script")), source_hash(element("style")));
}

}  // namespace

HttpResponse page_response() {
  static const std::string security_policy = policy();
  return {.body = kPage,
          .content_type = "text/html; charset=utf-8",
          .headers = {{"Content-Security-Policy", security_policy},
                      {"Cache-Control", "no-cache"},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"}}};
}

}  // namespace lazy::serve
