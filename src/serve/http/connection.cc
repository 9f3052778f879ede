#include "serve/http/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/http/error.hpp>
#include <cctype>
#include <cstring>

#include "core/log.h"
#include "core/random.h"
#include "serve/http/request_head.h"

namespace lazy::serve {
namespace net = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

constexpr size_t kReadBytes = 4096, kReadBodyBytes = 64 << 10;
constexpr size_t kReadAhead =
    64 << 10;  // maximum number of bytes of later requests that are buffered during a response
// If a response ends while the client is still sending, the connection stays open for this many seconds, so that the
// client can read the response.
constexpr double kLingerSeconds = 2;

template <typename View>
std::string text(const View& view) {
  return {view.data(), view.size()};
}

// Whether an id that was sent by a client is safe to use in headers and in the access log.
bool is_request_id(std::string_view id) {
  const auto allowed = [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_' || c == '.'; };
  return !id.empty() && id.size() <= 128 && std::all_of(id.begin(), id.end(), allowed);
}

}  // namespace

Connection::Connection(Socket socket, std::shared_ptr<ConnectionPool> pool)
    : pool_(std::move(pool)), strand_(socket.get_executor()), socket_(std::move(socket)), timer_(strand_) {
  error_code ignored;
  const auto endpoint = socket_.remote_endpoint(ignored);
  if (!ignored) client_ = endpoint.address().to_string();
}

Connection::~Connection() {
  set_busy(false);
  const std::scoped_lock lock(pool_->mutex);
  pool_->open.erase(this);
}

void Connection::start() {
  net::dispatch(strand_, [self = shared_from_this()] {
    error_code ignored;
    self->socket_.set_option(net::ip::tcp::no_delay(true), ignored);
    self->set_deadline(phase, self->pool_->limits.idle);
    self->read_more();
  });
}

void Connection::refuse() {
  net::dispatch(strand_, [self = shared_from_this()] {
    self->refuse_request({503, "the server has reached its connection limit; try again later", "too_many_connections"});
    self->read_more();
  });
}

void Connection::drain() {
  net::post(strand_, [self = shared_from_this()] {
    if (self->state_ == State::reading && !self->parser_) self->close();
  });
}

void Connection::abort() {
  net::post(strand_, [self = shared_from_this()] { self->client_gone(Gone::closed); });
}

void Connection::set_busy(bool busy) {
  if (busy_ != busy) pool_->busy += busy ? 1 : -1;
  busy_ = busy;
}

void Connection::begin_record() {
  record_ = {.begin = std::chrono::system_clock::now(), .client = client_};
  record_.request_id = fmt::format("req-{:016x}", Random(pool_->next_request++).next());
  begin_ = Clock::now();
}

// Copies the method, the path and the request id, if they have been read already, to `incoming_` and to the log record.
// Returns false if the request target is invalid.
bool Connection::record_head() {
  const auto& head = parser_->get();
  incoming_ = {};
  incoming_.method = record_.method = text(head.method_string());
  const bool valid_target = parse_target({head.target().data(), head.target().size()}, incoming_);
  if (valid_target) record_.path = incoming_.path;
  const std::string given_id = text(head["X-Request-Id"]);
  if (is_request_id(given_id)) record_.request_id = given_id;
  return valid_target;
}

// Writes one log record per request, after the end of its response.
void Connection::log_request(int status) {
  if (!std::exchange(unlogged_, false) || !pool_->access_log) return;
  record_.status = status;
  record_.seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
  pool_->access_log->write(record_);
}

void Connection::read_more() {
  if (read_pending_ || input_ended_ || state_ == State::closed) return;
  if (state_ != State::reading && state_ != State::lingering && buffer_.size() >= kReadAhead) return;
  read_pending_ = true;
  const bool body = state_ == State::reading && parser_ && parser_->is_header_done();
  input_.resize(body ? kReadBodyBytes : kReadBytes);
  input_.shrink_to_fit();
  socket_.async_read_some(net::buffer(input_),
                          [self = shared_from_this()](error_code error, size_t bytes) { self->on_read(error, bytes); });
}

void Connection::on_read(error_code error, size_t bytes) {
  read_pending_ = false;
  if (state_ == State::closed) return;
  if (error) {
    input_ended_ = true;
    // A client that has closed only its sending direction still receives its response. Exception: if the handler has
    // set a callback with Exchange::on_gone(), the end of the input is treated as a disconnect.
    const bool answer_comes = state_ == State::finishing || (state_ == State::answering && !gone_);
    if (answer_comes && error == net::error::eof) return;
    // Parse requests that arrived before the end of the input.
    if (state_ == State::reading && error == net::error::eof) return parse();
    client_gone(Gone::closed);
    return;
  }
  if (state_ != State::lingering) {
    buffer_.commit(net::buffer_copy(buffer_.prepare(bytes), net::buffer(input_, bytes)));
  }
  if (state_ == State::reading) {
    parse();
    return;
  }
  read_more();
}

void Connection::begin_request() {
  set_busy(true);
  begin_record();
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(pool_->limits.max_header_bytes));
  parser_->body_limit(static_cast<uint64_t>(pool_->limits.max_body_bytes));
  head_accepted_ = false;
  origin_.clear();
  set_deadline(phase, pool_->limits.read);
}

// Drops empty lines before a request line (RFC 9112 2.2).
void Connection::skip_empty_lines() {
  while (buffer_.size() >= 2 && std::memcmp(buffer_.data().data(), "\r\n", 2) == 0) buffer_.consume(2);
}

// Whether the buffered request line has three parts and ends with an HTTP version of the form "HTTP/2.0".
bool Connection::names_a_version() const {
  const auto bytes = buffer_.data();
  const std::string_view all(static_cast<const char*>(bytes.data()), bytes.size());
  const std::string_view line = all.substr(0, all.find('\r'));
  if (line.size() < 9) return false;
  const std::string_view version = line.substr(line.size() - 9);
  const auto digit = [&](size_t at) { return version[at] >= '0' && version[at] <= '9'; };
  return version.starts_with(" HTTP/") && digit(6) && version[7] == '.' && digit(8) &&
         std::count(line.begin(), line.end(), ' ') == 2;
}

// Parses the buffered input and consumes the bytes of the current request.
void Connection::parse() {
  if (!parser_) skip_empty_lines();
  while (buffer_.size() > 0) {
    if (!parser_) {
      const bool begins_with_cr = *static_cast<const char*>(buffer_.data().data()) == '\r';
      if (begins_with_cr && buffer_.size() == 1) break;
      begin_request();
      if (begins_with_cr) return refuse_bytes(http::error::bad_method);
    }
    error_code error;
    const size_t used = parser_->put(buffer_.data(), error);
    if (error == http::error::bad_version && !names_a_version()) error = http::error::bad_target;
    buffer_.consume(used);
    if (error && error != http::error::need_more) {
      refuse_bytes(error);
      return;
    }
    // The parser stops after the head, so that accept_head() cannot mistake trailer fields of a chunked body for header
    // fields.
    if (parser_->is_header_done() && !head_accepted_ && !accept_head()) return;
    if (parser_->is_done()) {
      hand_over();
      return;
    }
    if (error || used == 0) break;
  }
  if (input_ended_) {
    close();  // the rest of the request can no longer arrive
  } else {
    read_more();
  }
}

// Refuses a request that the parser does not accept.
void Connection::refuse_bytes(error_code error) {
  record_head();
  if (error == http::error::header_limit) {
    if (parser_->get().target().empty()) {
      refuse_request({414, "the request line is longer than the server allows", "uri_too_long"});
    } else {
      refuse_request({431, "the request's headers are larger than the server allows", "headers_too_large"});
    }
  } else if (error == http::error::body_limit) {
    refuse_request({413, "the request's body is larger than the server allows (--max-body-mb)", "body_too_large"});
  } else if (error == http::error::bad_version) {
    ++pool_->malformed;
    refuse_request({505, "expected HTTP/1.1 or HTTP/1.0", "http_version_not_supported"});
  } else {
    ++pool_->malformed;
    refuse_request({400, "the request is not valid HTTP/1.1", "malformed_request"});
  }
}

// Checks the request head before the body is read. Returns false if the request was refused.
bool Connection::accept_head() {
  const auto& head = parser_->get();
  const bool valid_target = record_head();
  if (const auto problem = check_head(head, parser_->chunked())) {
    ++pool_->malformed;
    refuse_request(*problem);
    return false;
  }
  if (!valid_target) {
    ++pool_->malformed;
    refuse_request({400, "the request target is not a valid path", "bad_target"});
    return false;
  }
  incoming_.authorization = text(head[http::field::authorization]);
  origin_ = text(head[http::field::origin]);
  requested_method_ = text(head[http::field::access_control_request_method]);
  requested_headers_ = text(head[http::field::access_control_request_headers]);
  head_accepted_ = true;
  parser_->eager(true);
  if (expects_continue(head) && !parser_->is_done()) {
    out_ += "HTTP/1.1 100 Continue\r\n\r\n";
    flush();
  }
  return true;
}

void Connection::hand_over() {
  http::request<http::string_body> message = parser_->release();
  parser_.reset();
  HttpRequest request = std::exchange(incoming_, {});
  request.body = std::move(message.body());
  keep_alive_ = message.keep_alive();
  chunked_ = message.version() >= 11;
  head_ = message.method() == http::verb::head;
  streaming_ = false;
  state_ = State::answering;
  unlogged_ = true;
  ++request_;
  set_deadline(phase, pool_->limits.request);
  const std::shared_ptr<Exchange> answer = make_answer();
  try {
    pool_->handler(std::move(request), answer);
  } catch (const std::exception& e) {
    log::warn("serve: {}", e.what());
    answer->respond({.status = 500, .body = plain_error(500, "internal error", "internal_error")});
  }
  read_more();
}

void Connection::refuse_request(const HttpProblem& problem) {
  if (!busy_) begin_record();  // a connection that is refused at once has no record yet
  parser_.reset();
  keep_alive_ = chunked_ = head_ = false;
  state_ = State::answering;
  unlogged_ = true;
  ++request_;
  respond({.status = problem.status, .body = plain_error(problem.status, problem.message, problem.code)});
}

void Connection::set_deadline(Deadline which, double seconds) {
  deadline_[which] = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  if (!timer_pending_) {
    wait();
  } else if (deadline_[which] < timer_.expiry()) {
    timer_.cancel();  // on_timer() then restarts the timer for the earliest deadline
  }
}

void Connection::wait() {
  const Clock::time_point next = std::min(deadline_[phase], deadline_[writing]);
  if (next == Clock::time_point::max()) return;
  timer_pending_ = true;
  timer_.expires_at(next);
  timer_.async_wait([self = shared_from_this()](error_code) { self->on_timer(); });
}

void Connection::on_timer() {
  timer_pending_ = false;
  if (state_ == State::closed) return;
  const Clock::time_point now = Clock::now();
  if (deadline_[writing] <= now) {
    client_gone(Gone::slow);
  } else if (deadline_[phase] <= now) {
    clear_deadline(phase);
    expired();
  }
  if (state_ != State::closed && !timer_pending_) wait();
}

void Connection::expired() {
  switch (state_) {
    case State::reading:
      if (!parser_) {
        close();  // no request has begun
      } else {
        ++pool_->timeouts;
        refuse_request({408, "the request took too long to arrive", "request_timeout"});
      }
      break;
    case State::answering: {
      ++pool_->timeouts;
      const uint64_t request = request_;
      if (const auto callback = std::exchange(gone_, nullptr)) callback(Gone::timeout);
      if (state_ != State::answering || request != request_) break;  // the callback has sent a response
      if (streaming_) {
        log_request(504);
        close();
      } else {
        keep_alive_ = false;
        respond({.status = 504, .body = plain_error(504, "the response took too long", "request_timeout")});
      }
      break;
    }
    default:
      close();
  }
}

void Connection::linger() {
  state_ = State::lingering;
  error_code ignored;
  socket_.shutdown(net::ip::tcp::socket::shutdown_send, ignored);
  if (ignored || input_ended_) {
    close();
    return;
  }
  buffer_.clear();
  set_deadline(phase, kLingerSeconds);
  read_more();
}

void Connection::close() {
  if (state_ == State::closed) return;
  log_request(499);
  state_ = State::closed;
  set_busy(false);
  gone_ = nullptr;
  timer_.cancel();
  error_code ignored;
  socket_.close(ignored);
  {
    const std::scoped_lock lock(pool_->mutex);
    pool_->open.erase(this);
  }
}

}  // namespace lazy::serve
