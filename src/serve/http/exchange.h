// A request over HTTP and the way to answer it, without the library that carries them.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lazy::serve {

struct HttpRequest {
  std::string method;         // "GET"
  std::string path, query;    // "/v1/models"; what follows the "?" (query_value() reads it)
  std::string authorization;  // the header's value
  std::string body;
};

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers = {};
};

// Why an answer ended before it was complete.
enum class Gone {
  closed,  // the client left
  slow,    // the client does not read: too much waits for it
  timeout  // the request took longer than its limit; unless a stream began, it can still be answered
};

// The answer to one request: respond, or begin_stream, write and end_stream. All but `post` are called on the
// connection's strand, where handlers run too. Calls after the answer's end, or after the client has left, do nothing.
class Exchange {
 public:
  virtual ~Exchange() = default;
  // Runs `work` on the strand, soon. From any thread.
  virtual void post(std::function<void()> work) = 0;
  virtual void respond(HttpResponse response) = 0;
  virtual void begin_stream(const std::string& content_type) = 0;
  virtual void write(std::string_view data) = 0;
  virtual void end_stream() = 0;
  // Called at most once, on the strand, instead of the answer's end.
  virtual void on_gone(std::function<void(Gone)> callback) = 0;
};

using HttpHandler = std::function<void(HttpRequest request, std::shared_ptr<Exchange> exchange)>;

// "Too Many Requests"
const char* status_text(int status);

// OpenAI's error object, for errors below the protocol: {"error": {"message", "type", "param", "code"}}. `message` and
// `code` need no escapes.
std::string plain_error(int status, std::string_view message, std::string_view code);

}  // namespace lazy::serve
