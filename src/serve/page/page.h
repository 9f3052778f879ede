// The web page at `/`: one HTML file that is embedded in the program.
#pragma once
#include "serve/http/exchange.h"

namespace lazy::serve {

// Returns the page with headers (Content-Security-Policy) that forbid the page to connect to other servers and allow
// only its embedded styles and scripts.
HttpResponse page_response();

}  // namespace lazy::serve
