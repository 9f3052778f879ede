// Origins of web pages, as browsers send them in the header Origin.
#pragma once
#include <string_view>

namespace lazy::serve {

// Whether a browser may send this value: "null", or a serialized origin (RFC 6454): scheme://host or
// scheme://host:port in lower case, the host in ASCII, without the scheme's default port and without a path.
bool is_origin(std::string_view text);

}  // namespace lazy::serve
