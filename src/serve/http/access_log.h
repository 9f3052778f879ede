// The access log of the HTTP server: one line per request. Bodies, query strings and headers are not logged, because
// they may contain prompts and keys.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

namespace lazy::serve {

struct AccessRecord {
  std::chrono::system_clock::time_point begin;  // when the first byte of the request arrived
  std::string client;                           // address of the client without the port
  std::string method, path;                     // empty if the request was refused before they were read
  int status = 0;                               // 499: the client disconnected before the end of the response
  int64_t bytes = 0;                            // size of the response body, or of the streamed data
  double seconds = 0;                           // from the first byte of the request to the last byte of the response
  std::string request_id;
};

// Formats a record as eight fields without spaces, for example "2026-01-31T12:00:00.123Z 127.0.0.1 POST /v1/completions
// 200 1234 0.456 req-0123456789abcdef", followed by a line end. Missing fields are "-".
std::string access_line(const AccessRecord& record);

// Thread-safe. Every line is appended by one write, so that tools may truncate or rename the file while the server
// runs.
class AccessLog {
 public:
  explicit AccessLog(const std::string& path);  // "-" selects standard error. Throws Error if the file cannot be opened
  ~AccessLog();
  AccessLog(const AccessLog&) = delete;
  AccessLog& operator=(const AccessLog&) = delete;
  // Writes one line. If lines cannot be written, a warning is logged the first time.
  void write(const AccessRecord& record);
  // Opens the path again, for log rotation: if the old file was renamed or removed, lines are written to a new file. If
  // the path cannot be opened, logs a warning and continues with the old file. Does nothing for "-".
  void reopen();

 private:
  std::string path_;
  int fd_;
  std::atomic<bool> warned_ = false;
};

}  // namespace lazy::serve
