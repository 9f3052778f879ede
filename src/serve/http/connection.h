// One connection of the HTTP server. It reads requests, passes each request to the handler and writes the response.
//
// All functions run on the connection's strand unless noted otherwise. The connection reads all the time: while a
// request is answered, the end of the input shows that the client has disconnected, and all other input is buffered for
// the next request.
#pragma once
#include <atomic>
#include <boost/asio/basic_waitable_timer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/strand.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "serve/http/access_log.h"
#include "serve/http/exchange.h"
#include "serve/http/request_head.h"
#include "serve/http/server.h"

namespace lazy::serve {

class Connection;

// State that all connections of a server share.
struct ConnectionPool {
  HttpLimits limits;
  HttpHandler handler;
  std::vector<std::string> allowed_origins;
  std::shared_ptr<AccessLog> access_log;   // null: no access log
  std::atomic<uint64_t> next_request = 0;  // counter from which request ids are computed (as hashes)
  boost::asio::io_context context;
  std::atomic<bool> draining = false;
  std::atomic<int64_t> accepted = 0, refused = 0, malformed = 0, timeouts = 0, gone = 0;
  std::mutex mutex;  // protects `open`
  std::unordered_map<Connection*, std::weak_ptr<Connection>> open;
  std::atomic<int64_t> busy = 0;  // number of requests that are being read or answered
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Strand = boost::asio::strand<boost::asio::io_context::executor_type>;
  using Socket = boost::asio::basic_stream_socket<boost::asio::ip::tcp, Strand>;
  using Clock = std::chrono::steady_clock;

  Connection(Socket socket, std::shared_ptr<ConnectionPool> pool);
  ~Connection();
  void start();
  void refuse();  // called instead of start() if there are too many connections
  void drain();   // may be called from any thread
  void abort();   // may be called from any thread

 private:
  class Answer;
  enum class State { reading, answering, finishing, lingering, closed };

  // Functions that read requests (defined in connection.cc):
  void read_more();
  void on_read(boost::system::error_code error, size_t bytes);
  void parse();
  void begin_request();
  void skip_empty_lines();
  bool names_a_version() const;
  bool accept_head();
  void hand_over();
  void refuse_bytes(boost::system::error_code error);
  void refuse_request(const HttpProblem& problem);
  void set_busy(bool busy);
  void begin_record();
  bool record_head();
  void log_request(int status);

  // Functions that write responses (defined in connection_answer.cc):
  std::shared_ptr<Exchange> make_answer();
  void respond(const HttpResponse& response);
  void write_cors();
  void begin_stream(const std::string& content_type);
  void write_chunk(std::string_view data);
  void end_stream(int status);
  void finish();  // called when the whole response is queued; some of it may not be written yet
  void flush();
  void on_written(boost::system::error_code error, size_t bytes);
  void after_answer();
  void linger();
  void client_gone(Gone why);
  void close();

  // Functions for deadlines. `phase` limits the time in the current state (idle, reading or answering), and `writing`
  // the time of one write. The timer runs while at least one deadline is set.
  enum Deadline { phase, writing, deadlines };
  void set_deadline(Deadline which, double seconds);
  void clear_deadline(Deadline which) { deadline_[which] = Clock::time_point::max(); }
  void wait();
  void on_timer();
  void expired();

  const std::shared_ptr<ConnectionPool> pool_;
  Strand strand_;
  Socket socket_;
  State state_ = State::reading;

  std::vector<char> input_;           // buffer for the read operation in progress
  boost::beast::flat_buffer buffer_;  // input that is not yet parsed
  // Parser of the current request.
  std::optional<boost::beast::http::request_parser<boost::beast::http::string_body>> parser_;
  bool read_pending_ = false, input_ended_ = false, head_accepted_ = false, busy_ = false;
  HttpRequest incoming_;  // the request that is being read; set when its head has been accepted

  // CORS headers of the current request: Origin, Access-Control-Request-Method and Access-Control-Request-Headers.
  std::string origin_, requested_method_, requested_headers_;

  // Data for the access log and the header X-Request-Id.
  std::string client_;   // address of the client without the port
  AccessRecord record_;  // current request; request_id is set when its head has been read
  Clock::time_point begin_;
  bool unlogged_ = false;  // true if the current request has not been logged yet

  // State of the request that is being answered.
  bool keep_alive_ = true, chunked_ = true, head_ = false, streaming_ = false;
  uint64_t request_ = 0;  // number of the current request; an Answer for an earlier request has no effect
  std::function<void(Gone)> gone_;

  std::string out_, in_flight_;  // out_: queued output; in_flight_: output that is being written
  size_t written_ = 0;           // bytes of in_flight_ that are written
  bool write_pending_ = false;
  bool closing_ = false;  // whether to close the connection when the pending write ends

  Clock::time_point deadline_[deadlines] = {Clock::time_point::max(), Clock::time_point::max()};
  boost::asio::basic_waitable_timer<Clock, boost::asio::wait_traits<Clock>, Strand> timer_;
  bool timer_pending_ = false;
};

}  // namespace lazy::serve
