// An HTTP/1.1 server with limits: a few threads serve thousands of connections. Each connection has a strand and a
// timer and holds no thread while it waits for its client or for the engine.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "serve/http/access_log.h"
#include "serve/http/exchange.h"

namespace lazy::serve {

struct HttpLimits {
  int64_t max_header_bytes = 16 << 10;           // of a request's line and headers; more: 431
  int64_t max_body_bytes = int64_t{16} << 20;    // more: 413
  int64_t max_connections = 4096;                // more: 503
  int64_t max_backlog_bytes = int64_t{4} << 20;  // of a stream whose client does not read; more: the client is cut off
  // Seconds.
  double idle = 75;      // between two requests of a connection
  double read = 60;      // from a request's first byte to its last; more: 408
  double write = 30;     // without the client taking a byte
  double request = 600;  // from a request's last byte to its answer's last; more: 504
};

// Counts since the start, but `open`.
struct HttpCounters {
  int64_t open = 0, accepted = 0, refused = 0, malformed = 0, timeouts = 0, gone = 0;
};

class HttpServer {
 public:
  // Listens at once; port 0 picks a free port. `allowed_origins`: the origins ("https://example.org") whose pages may
  // read answers (CORS); "*" allows all. `access_log` gets a record of every request; null: none. Throws Error if the
  // address is not available.
  HttpServer(const std::string& host, int port, int threads, const HttpLimits& limits, HttpHandler handler,
             std::vector<std::string> allowed_origins = {}, std::shared_ptr<AccessLog> access_log = nullptr);
  ~HttpServer();  // closes what is open

  int port() const;
  std::string address() const;  // "http://127.0.0.1:8080"
  bool is_local() const;        // whether only this machine can connect: a loopback address
  HttpCounters counters() const;
  // From now on a connection ends with its answer; connections between two requests are closed.
  void drain();
  // Waits until no request is being read or answered, but `seconds` at most.
  bool wait_for_answers(double seconds);
  void stop();

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace lazy::serve
