// An HTTP request and the interface for answering it, independent of the HTTP library.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lazy::serve {

struct HttpRequest {
  std::string method;         // for example "GET"
  std::string path, query;    // path: for example "/v1/models"; query: the text after "?" (see query_value())
  std::string authorization;  // value of the Authorization header
  std::string body;
};

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers = {};
};

// Reason why a response ended before it was complete.
enum class Gone {
  closed,  // the client disconnected
  slow,    // the client does not read, and too much output is queued for it
  timeout  // the time limit has passed; a response is still possible if no stream has begun
};

// Interface for answering one request: call respond(), or begin_stream(), write() and end_stream(). Handlers run on the
// connection's strand, and all functions except post() must be called on this strand. Calls have no effect after the
// end of the response or after the client has disconnected.
class Exchange {
 public:
  virtual ~Exchange() = default;
  // Schedules `work` on the connection's strand. May be called from any thread.
  virtual void post(std::function<void()> work) = 0;
  virtual void respond(HttpResponse response) = 0;
  virtual void begin_stream(const std::string& content_type) = 0;
  virtual void write(std::string_view data) = 0;
  // status: how the stream ended, for the access log only; the client has already received status 200.
  virtual void end_stream(int status) = 0;
  // Sets a callback that is called at most once, on the strand, if the response ends before it is complete.
  virtual void on_gone(std::function<void(Gone)> callback) = 0;
};

using HttpHandler = std::function<void(HttpRequest request, std::shared_ptr<Exchange> exchange)>;

// Returns the reason phrase of a status, for example "Too Many Requests" for 429.
const char* status_text(int status);

// Returns OpenAI's error object for errors at the HTTP level: {"error": {"message", "type", "param", "code"}}.
// `message` and `code` must not contain characters that JSON escapes.
std::string plain_error(int status, std::string_view message, std::string_view code);

}  // namespace lazy::serve
