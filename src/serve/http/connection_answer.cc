#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <iterator>

#include "serve/http/connection.h"

namespace lazy::serve {
namespace net = boost::asio;
using boost::system::error_code;

// The handler's reference to a connection. If it is destroyed without a response, the connection is closed. The
// reference may outlive the connection and the server; the shared pool keeps the strand's execution context alive.
class Connection::Answer final : public Exchange {
 public:
  explicit Answer(const std::shared_ptr<Connection>& connection)
      : pool_(connection->pool_), connection_(connection), request_(connection->request_) {}
  ~Answer() override {
    post([connection = connection_, request = request_] {
      const auto open = connection.lock();
      if (open && open->request_ == request && open->state_ == State::answering) open->client_gone(Gone::closed);
    });
  }
  void post(std::function<void()> work) override {
    if (const auto connection = connection_.lock()) net::post(connection->strand_, std::move(work));
  }
  void respond(HttpResponse response) override {
    if (const auto connection = current(false)) connection->respond(response);
  }
  void begin_stream(const std::string& content_type) override {
    if (const auto connection = current(false)) connection->begin_stream(content_type);
  }
  void write(std::string_view data) override {
    if (const auto connection = current(true)) connection->write_chunk(data);
  }
  void end_stream(int status) override {
    if (const auto connection = current(true)) connection->end_stream(status);
  }
  void on_gone(std::function<void(Gone)> callback) override {
    const auto connection = connection_.lock();
    if (connection && connection->request_ == request_ && connection->state_ == State::answering) {
      connection->gone_ = std::move(callback);
      if (connection->input_ended_) connection->client_gone(Gone::closed);
    } else {
      callback(Gone::closed);
    }
  }

 private:
  // Returns the connection if this request is still being answered and its streaming state equals `streaming`;
  // otherwise null.
  std::shared_ptr<Connection> current(bool streaming) const {
    auto connection = connection_.lock();
    const bool is = connection && connection->request_ == request_ && connection->state_ == State::answering &&
                    connection->streaming_ == streaming;
    return is ? connection : nullptr;
  }
  const std::shared_ptr<ConnectionPool> pool_;
  const std::weak_ptr<Connection> connection_;
  const uint64_t request_;
};

std::shared_ptr<Exchange> Connection::make_answer() { return std::make_shared<Answer>(shared_from_this()); }

// Implements CORS as defined by the Fetch standard: pages of an allowed origin may read the response and send the
// methods and headers of a preflight request.
void Connection::write_cors() {
  const std::vector<std::string>& allowed = pool_->allowed_origins;
  if (allowed.empty() || origin_.empty()) return;
  const bool any = std::ranges::find(allowed, "*") != allowed.end();
  if (!any) out_ += "Vary: Origin\r\n";
  if (!any && std::ranges::find(allowed, origin_) == allowed.end()) return;
  const auto out = std::back_inserter(out_);
  fmt::format_to(out, "Access-Control-Allow-Origin: {}\r\n", any ? "*" : origin_);
  if (requested_method_.empty()) return;
  out_ += "Access-Control-Allow-Methods: GET, HEAD, POST, OPTIONS\r\nAccess-Control-Max-Age: 600\r\n";
  // "*" does not cover the Authorization header, so the response repeats the header names of the preflight request.
  if (!requested_headers_.empty()) fmt::format_to(out, "Access-Control-Allow-Headers: {}\r\n", requested_headers_);
}

void Connection::respond(const HttpResponse& response) {
  if (pool_->draining) keep_alive_ = false;
  const auto out = std::back_inserter(out_);
  fmt::format_to(out, "HTTP/1.1 {} {}\r\n", response.status, status_text(response.status));
  if (response.status != 204) {  // 204 responses have no body
    fmt::format_to(out, "Content-Type: {}\r\nContent-Length: {}\r\n", response.content_type, response.body.size());
  }
  fmt::format_to(out, "Connection: {}\r\n", keep_alive_ ? "keep-alive" : "close");
  for (const auto& [name, value] : response.headers) fmt::format_to(out, "{}: {}\r\n", name, value);
  fmt::format_to(out, "X-Request-Id: {}\r\n", record_.request_id);
  write_cors();
  out_ += "\r\n";
  if (!head_) out_ += response.body;
  record_.status = response.status;
  record_.bytes = head_ || response.status == 204 ? 0 : static_cast<int64_t>(response.body.size());
  finish();
}

void Connection::begin_stream(const std::string& content_type) {
  streaming_ = true;
  if (pool_->draining || !chunked_) keep_alive_ = false;
  // nginx buffers a stream unless X-Accel-Buffering is "no".
  fmt::format_to(std::back_inserter(out_),
                 "HTTP/1.1 200 OK\r\nContent-Type: {}\r\nCache-Control: no-cache\r\nX-Accel-Buffering: no\r\n"
                 "Connection: {}\r\nX-Request-Id: {}\r\n{}",
                 content_type, keep_alive_ ? "keep-alive" : "close", record_.request_id,
                 chunked_ ? "Transfer-Encoding: chunked\r\n" : "");
  record_.status = 200;
  write_cors();
  out_ += "\r\n";
  flush();
}

void Connection::write_chunk(std::string_view data) {
  if (data.empty()) return;
  record_.bytes += static_cast<int64_t>(data.size());
  if (chunked_) fmt::format_to(std::back_inserter(out_), "{:x}\r\n", data.size());
  out_ += data;
  if (chunked_) out_ += "\r\n";
  if (static_cast<int64_t>(out_.size() + in_flight_.size() - written_) > pool_->limits.max_backlog_bytes) {
    client_gone(Gone::slow);
  } else {
    flush();
  }
}

void Connection::end_stream(int status) {
  record_.status = status;
  if (chunked_) out_ += "0\r\n\r\n";
  finish();
}

void Connection::finish() {
  gone_ = nullptr;
  state_ = State::finishing;
  clear_deadline(phase);
  flush();
}

// Writes queued output. Output that is added during a write is sent by the next write.
void Connection::flush() {
  if (write_pending_ || state_ == State::closed) return;
  if (written_ == in_flight_.size()) {
    in_flight_.clear();
    std::swap(in_flight_, out_);
    written_ = 0;
  }
  if (in_flight_.empty()) {
    clear_deadline(writing);
    if (state_ == State::finishing) after_answer();
    return;
  }
  write_pending_ = true;
  set_deadline(writing, pool_->limits.write);
  socket_.async_write_some(
      net::buffer(in_flight_.data() + written_, in_flight_.size() - written_),
      [self = shared_from_this()](error_code error, size_t bytes) { self->on_written(error, bytes); });
}

void Connection::on_written(error_code error, size_t bytes) {
  write_pending_ = false;
  if (state_ == State::closed) return;
  if (!error) written_ += bytes;
  const bool sent = written_ == in_flight_.size() && out_.empty();
  if (closing_ && sent) log_request(record_.status);
  if (closing_) {
    close();
  } else if (error) {
    client_gone(Gone::closed);
  } else {
    flush();
  }
}

void Connection::after_answer() {
  log_request(record_.status);
  set_busy(false);
  if (in_flight_.capacity() > (64 << 10)) in_flight_ = {};
  if (out_.capacity() > (64 << 10)) out_ = {};
  if (!keep_alive_ || (input_ended_ && buffer_.size() == 0) || pool_->draining) {
    linger();
    return;
  }
  state_ = State::reading;
  set_deadline(phase, pool_->limits.idle);
  // Parsing is posted to the strand, so that a client that pipelines many requests does not cause deep recursion.
  net::post(strand_, [self = shared_from_this()] {
    if (self->state_ == State::reading) self->parse();
  });
}

void Connection::client_gone(Gone why) {
  if (state_ == State::closed) return;
  if (state_ == State::finishing && write_pending_) {
    // The pending write is cancelled, but it may already have sent the last bytes. on_written() checks this and closes
    // the connection.
    closing_ = true;
    error_code ignored;
    socket_.cancel(ignored);
    return;
  }
  if (state_ == State::answering) ++pool_->gone;
  const auto callback = std::exchange(gone_, nullptr);
  close();
  if (callback) callback(why);
}

}  // namespace lazy::serve
