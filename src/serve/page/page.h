// The web page at `/`: one HTML file that is embedded in the program.
#pragma once
#include "serve/http/exchange.h"

namespace lazy::serve {

// The headers forbid the page to connect to other servers, and allow only its embedded styles and scripts.
HttpResponse page_response();

}  // namespace lazy::serve
