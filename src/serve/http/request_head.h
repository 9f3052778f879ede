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

// Reason why a request is refused. The connection is closed afterwards, because the end of the request's body may be
// unknown.
struct HttpProblem {
  int status;
  const char* message;  // must not contain characters that JSON escapes
  const char* code;
};

// Checks the headers Host (RFC 9112 3.2), Expect (RFC 9110 10.1.1) and Content-Encoding, and the framing of the body
// (RFC 9112 6.3). chunked: whether the parser reads the body in chunks. The function refuses requests whose body length
// two HTTP implementations could interpret differently: Transfer-Encoding other than "chunked", Transfer-Encoding with
// Content-Length, Transfer-Encoding in HTTP/1.0, and repeated Content-Length.
std::optional<HttpProblem> check_head(const HttpHead& head, bool chunked);

// Whether the client waits for the response "100 Continue" before it sends the body.
bool expects_continue(const HttpHead& head);

// Sets request.path and request.query from a request target in origin form, absolute form or asterisk form (RFC 9112
// 3.2). In the path, percent-encoded unreserved characters are decoded (RFC 3986 6.2.2.2). Returns false if the target
// is invalid.
bool parse_target(std::string_view target, HttpRequest& request);

// Decodes %XX sequences. plus_is_space: also decodes "+" as a space, as in query strings.
std::string percent_decoded(std::string_view text, bool plus_is_space = false);

// Returns the decoded value of the last query parameter `name`.
std::optional<std::string> query_value(std::string_view query, std::string_view name);

}  // namespace lazy::serve
