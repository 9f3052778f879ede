// Rules of RFC 9110 and RFC 9112 for the head of a request that the parser library does not check.
#pragma once
#include <boost/beast/http/fields.hpp>
#include <boost/beast/http/message.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "serve/http/exchange.h"

namespace lazy::serve {

using HttpHead = boost::beast::http::request_header<boost::beast::http::fields>;

// Why a request is refused. The connection is closed afterwards: where its body ends may be unknown.
struct HttpProblem {
  int status;
  const char* message;  // without characters that JSON escapes
  const char* code;
};

// Host (RFC 9112 3.2), message body length (RFC 9112 6.3), Expect (RFC 9110 10.1.1) and Content-Encoding. `chunked`:
// whether the parser reads the body in chunks. A request whose framing two implementations could read differently is
// refused: Transfer-Encoding other than "chunked", together with Content-Length, or in HTTP/1.0; repeated
// Content-Length.
std::optional<HttpProblem> check_head(const HttpHead& head, bool chunked);

// Whether the client waits for "100 Continue" before it sends the body.
bool expects_continue(const HttpHead& head);

// Sets request.path and request.query from an origin-form, absolute-form or asterisk-form target (RFC 9112 3.2). In the
// path, percent-encoded unreserved characters are decoded (RFC 3986 6.2.2.2). False: not a valid target.
bool parse_target(std::string_view target, HttpRequest& request);

// Replaces %XX by the byte. `plus_is_space`: as in a query.
std::string percent_decoded(std::string_view text, bool plus_is_space = false);

// The decoded value of the last parameter `name` of a query, in any position.
std::optional<std::string> query_value(std::string_view query, std::string_view name);

}  // namespace lazy::serve
