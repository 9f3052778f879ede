// An HTTP/1.1 server with resource limits. A few threads handle thousands of connections. Each connection has a strand
// and a timer, and does not block a thread while it waits for its client or for the engine.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "serve/http/access_log.h"
#include "serve/http/exchange.h"

namespace lazy::serve {

struct HttpLimits {
  int64_t max_header_bytes = 16 << 10;  // maximum size of the request line and headers; larger requests get HTTP 431
  int64_t max_body_bytes = int64_t{16} << 20;    // maximum size of a request body; larger requests get HTTP 413
  int64_t max_connections = 4096;                // maximum number of open connections; further ones get HTTP 503
  int64_t max_backlog_bytes = int64_t{4} << 20;  // maximum unsent data of a stream; with more, the connection is closed
  // Time limits in seconds. `idle` limits the time between two requests, and `write` the time in which a write makes no
  // progress. If one of them is exceeded, the connection is closed.
  double idle = 75;
  double read = 60;  // limit from the first to the last byte of a request; if exceeded: HTTP 408
  double write = 30;
  double request = 600;  // limit from the end of a request to the end of its response; if exceeded: HTTP 504
};

// `open` is the current number of connections. All other fields count events since the start: accepted and refused
// connections, invalid requests, requests that exceeded a time limit, and clients that disconnected before the end of
// their response (`gone`).
struct HttpCounters {
  int64_t open = 0, accepted = 0, refused = 0, malformed = 0, timeouts = 0, gone = 0;
};

class HttpServer {
 public:
  // Starts to listen immediately; port 0 picks a free port. allowed_origins: origins ("https://example.org") whose web
  // pages may read responses (CORS); "*" allows all origins. access_log receives one record per request; null disables
  // it. Throws Error if the address is not available.
  HttpServer(const std::string& host, int port, int threads, const HttpLimits& limits, HttpHandler handler,
             std::vector<std::string> allowed_origins = {}, std::shared_ptr<AccessLog> access_log = nullptr);
  ~HttpServer();  // closes all connections

  int port() const;
  std::string address() const;  // for example "http://127.0.0.1:8080"
  bool is_local() const;        // true for a loopback address: only this machine can connect
  HttpCounters counters() const;
  int64_t unanswered() const;  // number of requests that are being read or answered
  // Closes idle connections. Every other connection is closed after its current response.
  void drain();
  // Waits until no request is being read or answered, but no longer than `seconds`. Returns false on timeout.
  bool wait_for_answers(double seconds);
  void stop();

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace lazy::serve
