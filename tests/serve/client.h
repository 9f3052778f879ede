// An HTTP client for tests over a blocking socket, and a test server with a fake engine.
#pragma once
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "fake_engine.h"
#include "serve/http/server.h"
#include "serve/openai/api.h"

namespace lazy::serve::testing_support {

struct Reply {
  int status = 0;  // status 0: the connection ended without a response
  std::map<std::string, std::string> headers;
  std::string body;
  nlohmann::ordered_json json() const { return nlohmann::ordered_json::parse(body, nullptr, false); }
  std::vector<std::string> events() const {  // returns the events of a streamed response
    std::vector<std::string> out;
    size_t at = 0;
    while (at < body.size()) {
      const size_t end = body.find("\n\n", at);
      EXPECT_EQ(body.substr(at, 6), "data: ");
      if (end == std::string::npos) break;
      out.push_back(body.substr(at + 6, end - at - 6));
      at = end + 2;
    }
    return out;
  }
};

class Client {
 public:
  explicit Client(int port, int receive_buffer = 0) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (receive_buffer > 0) ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~Client() { close(); }
  Client(Client&& other) noexcept : fd_(std::exchange(other.fd_, -1)), connected_(other.connected_), in_(other.in_) {}
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool connected() const { return connected_; }
  int fd() const { return fd_; }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  void end_of_input() { ::shutdown(fd_, SHUT_WR); }
  bool send(std::string_view data) {
    while (!data.empty()) {
      const ssize_t n = ::send(fd_, data.data(), data.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      data.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  // Reads until `text` has arrived. Returns false if the connection ends first or after `seconds`.
  bool read_until(std::string_view text, double seconds = 10) {
    while (in_.find(text) == std::string::npos) {
      if (!read_some(seconds)) return false;
    }
    return true;
  }
  bool ended(double seconds = 10) {  // waits until the server closes the connection
    while (read_some(seconds)) {
    }
    return !timed_out_;
  }
  const std::string& received() const { return in_; }

  Reply read_reply(double seconds = 10, bool head = false) {
    Reply out;
    if (!read_until("\r\n\r\n", seconds)) return out;
    const size_t end = in_.find("\r\n\r\n");
    const std::string header = in_.substr(0, end + 2);
    in_.erase(0, end + 4);
    out.status = std::atoi(header.c_str() + sizeof("HTTP/1.1 ") - 1);
    size_t at = header.find("\r\n") + 2;
    while (at < header.size()) {
      const size_t colon = header.find(": ", at), line_end = header.find("\r\n", at);
      out.headers[header.substr(at, colon - at)] = header.substr(colon + 2, line_end - colon - 2);
      at = line_end + 2;
    }
    if (head) return out;
    if (out.headers.contains("Content-Length")) {
      const size_t size = std::stoul(out.headers["Content-Length"]);
      while (in_.size() < size && read_some(seconds)) {
      }
      out.body = in_.substr(0, size);
      in_.erase(0, size);
    } else if (out.headers.contains("Transfer-Encoding")) {
      while (read_until("\r\n", seconds)) {
        const size_t size = std::stoul(in_, nullptr, 16);
        in_.erase(0, in_.find("\r\n") + 2);
        while (in_.size() < size + 2 && read_some(seconds)) {
        }
        out.body += in_.substr(0, size);
        in_.erase(0, size + 2);
        if (size == 0) break;
      }
    } else {
      while (read_some(seconds)) {
      }
      out.body = std::exchange(in_, {});
    }
    return out;
  }

  Reply get(const std::string& path, const std::string& headers = "") {
    send("GET " + path + " HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n");
    return read_reply();
  }
  static std::string post_text(const std::string& path, const std::string& body, const std::string& headers = "") {
    return "POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + headers +
           "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }
  Reply post(const std::string& path, const std::string& body, const std::string& headers = "") {
    send(post_text(path, body, headers));
    return read_reply();
  }
  Reply post(const std::string& path, const nlohmann::json& body, const std::string& headers = "") {
    return post(path, body.dump(), headers);
  }

 private:
  bool read_some(double seconds) {
    pollfd state{fd_, POLLIN, 0};
    timed_out_ = ::poll(&state, 1, static_cast<int>(seconds * 1000)) <= 0;
    if (timed_out_) return false;
    char piece[65536];
    const ssize_t n = ::recv(fd_, piece, sizeof piece, 0);
    if (n > 0) in_.append(piece, static_cast<size_t>(n));
    return n > 0;
  }
  int fd_;
  bool connected_ = false, timed_out_ = false;
  std::string in_;
};

inline void raise_file_limit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// A server with a fake engine and one model. It listens on a free port.
struct TestServer {
  explicit TestServer(FakeEngine::Options options = {}, const HttpLimits& limits = {}, ApiKeys keys = {},
                      int threads = 2, std::vector<std::string> allowed_origins = {},
                      std::shared_ptr<AccessLog> access_log = nullptr)
      : engine(std::make_shared<FakeEngine>(std::move(options))),
        api({fake_model(*engine)}, std::move(keys)),
        http(
            "127.0.0.1", 0, threads, limits,
            [this](HttpRequest request, std::shared_ptr<Exchange> exchange) { api.handle(request, exchange); },
            std::move(allowed_origins), std::move(access_log)) {
    api.set_http_counters([this] { return http.counters(); });
  }
  Client client(int receive_buffer = 0) { return Client(http.port(), receive_buffer); }
  Reply post(const std::string& path, const nlohmann::json& body) { return client().post(path, body); }
  Reply complete(const nlohmann::json& body) { return post("/v1/completions", body); }

  std::shared_ptr<FakeEngine> engine;
  Api api;
  HttpServer http;
};

}  // namespace lazy::serve::testing_support
