#include "serve/http/server.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/steady_timer.hpp>
#include <random>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "serve/http/connection.h"

namespace lazy::serve {
namespace net = boost::asio;
using boost::system::error_code;
using net::ip::tcp;

namespace {

tcp::endpoint endpoint_of(net::io_context& context, const std::string& host, int port) {
  error_code error;
  const auto address = net::ip::make_address(host, error);
  if (!error) return {address, static_cast<uint16_t>(port)};
  tcp::resolver resolver(context);
  const auto found = resolver.resolve(host, std::to_string(port), error);
  if (error || found.empty()) fail("serve", "--host {}: {}", host, error ? error.message() : "no such host");
  return found.begin()->endpoint();
}

// Raises the process's limit of open files to the number that the connections need, or to the system's maximum if that
// is lower.
void raise_file_limit(int64_t connections) {
  rlimit limit{};
  const auto wanted = static_cast<rlim_t>(connections) + 512;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < wanted) {
    log::warn("serve: the system allows {} open files, but {} connections need {} (see ulimit -n)", limit.rlim_cur,
              connections, wanted);
  }
}

}  // namespace

struct HttpServer::Impl {
  std::shared_ptr<ConnectionPool> pool = std::make_shared<ConnectionPool>();
  net::io_context& context = pool->context;
  net::executor_work_guard<net::io_context::executor_type> work{context.get_executor()};
  tcp::acceptor acceptor{context};
  tcp::endpoint local;
  net::steady_timer pause{context};
  std::vector<std::thread> threads;

  void listen(const std::string& host, int port) {
    const tcp::endpoint endpoint = endpoint_of(context, host, port);
    error_code error;
    const auto check = [&] {
      if (error) fail("serve", "cannot listen at {} port {}: {}", host, port, error.message());
    };
    acceptor.open(endpoint.protocol(), error);
    check();
    acceptor.set_option(tcp::acceptor::reuse_address(true), error);
    check();
    acceptor.bind(endpoint, error);
    check();
    acceptor.listen(net::socket_base::max_listen_connections, error);
    check();
    local = acceptor.local_endpoint();
  }

  void accept() {
    acceptor.async_accept(net::make_strand(context),
                          [this](error_code error, Connection::Socket socket) { on_accept(error, std::move(socket)); });
  }

  void on_accept(error_code error, Connection::Socket socket) {
    if (error == net::error::operation_aborted || !acceptor.is_open()) return;
    if (error) {
      // One possible cause is a lack of file descriptors. Try again after 100 ms; other connections may end meanwhile.
      log::warn("serve: a connection could not be accepted: {}", error.message());
      pause.expires_after(std::chrono::milliseconds(100));
      pause.async_wait([this](error_code stopped) {
        if (!stopped) accept();
      });
      return;
    }
    const auto connection = std::make_shared<Connection>(std::move(socket), pool);
    size_t open;
    {
      const std::scoped_lock lock(pool->mutex);
      pool->open[connection.get()] = connection;
      open = pool->open.size();
    }
    const auto most = static_cast<size_t>(pool->limits.max_connections);
    if (open <= most) {
      ++pool->accepted;
      connection->start();
    } else {
      ++pool->refused;
      // If more than 256 connections above the limit are open, new connections are closed without a response.
      if (open <= most + 256) connection->refuse();
    }
    accept();
  }

  template <typename Call>
  void each(Call call) {
    std::vector<std::shared_ptr<Connection>> all;
    {
      const std::scoped_lock lock(pool->mutex);
      for (const auto& [pointer, weak] : pool->open) {
        if (auto connection = weak.lock()) all.push_back(std::move(connection));
      }
    }
    for (const auto& connection : all) call(*connection);
  }

  void run() {
    while (true) {
      try {
        context.run();
        return;
      } catch (const std::exception& e) {
        log::warn("serve: {}", e.what());
      }
    }
  }
};

HttpServer::HttpServer(const std::string& host, int port, int threads, const HttpLimits& limits, HttpHandler handler,
                       std::vector<std::string> allowed_origins, std::shared_ptr<AccessLog> access_log)
    : impl_(std::make_shared<Impl>()) {
  impl_->pool->limits = limits;
  impl_->pool->handler = std::move(handler);
  impl_->pool->allowed_origins = std::move(allowed_origins);
  impl_->pool->access_log = std::move(access_log);
  impl_->pool->next_request = (static_cast<uint64_t>(std::random_device()()) << 32) + std::random_device()();
  raise_file_limit(limits.max_connections);
  impl_->listen(host, port);
  impl_->accept();
  for (int i = 0; i < threads; ++i) impl_->threads.emplace_back([impl = impl_.get()] { impl->run(); });
}

HttpServer::~HttpServer() { stop(); }

int HttpServer::port() const { return impl_->local.port(); }

std::string HttpServer::address() const {
  const tcp::endpoint& endpoint = impl_->local;
  const std::string host = endpoint.address().to_string();
  const bool brackets = endpoint.address().is_v6();
  return fmt::format("http://{}{}{}:{}", brackets ? "[" : "", host, brackets ? "]" : "", endpoint.port());
}

bool HttpServer::is_local() const {
  const net::ip::address address = impl_->local.address();
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    return net::ip::make_address_v4(net::ip::v4_mapped, address.to_v6()).is_loopback();
  }
  return address.is_loopback();
}

HttpCounters HttpServer::counters() const {
  const ConnectionPool& pool = *impl_->pool;
  const std::scoped_lock lock(impl_->pool->mutex);
  return {
      static_cast<int64_t>(pool.open.size()), pool.accepted, pool.refused, pool.malformed, pool.timeouts, pool.gone};
}

int64_t HttpServer::unanswered() const { return impl_->pool->busy; }

void HttpServer::drain() {
  impl_->pool->draining = true;
  impl_->each([](Connection& connection) { connection.drain(); });
}

bool HttpServer::wait_for_answers(double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (impl_->pool->busy > 0) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

void HttpServer::stop() {
  if (impl_->threads.empty()) return;
  net::post(impl_->context, [impl = impl_.get()] {
    error_code ignored;
    impl->acceptor.close(ignored);
    impl->pause.cancel();
  });
  impl_->each([](Connection& connection) { connection.abort(); });
  impl_->work.reset();
  for (int i = 0; i < 100 && counters().open > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  impl_->context.stop();
  for (std::thread& thread : impl_->threads) thread.join();
  impl_->threads.clear();
  // Pending operations of closed sockets still reference their connections, which reference the io_context. Run these
  // operations now so that the connections are destroyed.
  impl_->context.restart();
  impl_->context.poll();
}

}  // namespace lazy::serve
