// The page at `/`: one HTML file that is part of the program.
#pragma once
#include "serve/http/exchange.h"

namespace lazy::serve {

// With headers that forbid it every address but this server's, and every style and script but its own.
HttpResponse page_response();

}  // namespace lazy::serve
