// Origins of web pages, as browsers send them in the header Origin.
#pragma once
#include <string_view>

namespace lazy::serve {

// Whether `text` is a valid value of the header Origin. Valid are "null" and serialized origins (RFC 6454):
// scheme://host or scheme://host:port in lower case, with an ASCII host, without the scheme's default port and without
// a path.
bool is_origin(std::string_view text);

}  // namespace lazy::serve
