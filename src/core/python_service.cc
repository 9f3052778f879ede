#include "core/python_service.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/python_child.h"
#include "core/stop.h"

namespace lazy {
using Json = nlohmann::ordered_json;

namespace {

constexpr int kStartSeconds = 60;
constexpr int kStopPoll = 100;  // milliseconds between checks for a stop signal
constexpr size_t kMaxAnswer = size_t{1} << 30;

}  // namespace

PythonService::PythonService(const char* operation, std::string what, std::string script, Json first)
    : operation_(operation),
      what_(std::move(what)),
      script_(std::move(script)),
      first_(std::make_unique<Json>(std::move(first))) {}

PythonService::~PythonService() { stop(); }

void PythonService::stop() {
  if (fd_ >= 0) ::close(fd_);
  if (child_ > 0) {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  fd_ = -1;
  child_ = -1;
}

Json PythonService::start() {
  const std::scoped_lock lock(mutex_);
  stop();
  return start_locked(OnStop::end);
}

Json PythonService::ask(const Json& question, int seconds) { return ask(question, seconds, OnStop::finish); }

Json PythonService::ask_until_stopped(const Json& question, int seconds) { return ask(question, seconds, OnStop::end); }

Json PythonService::ask(const Json& question, int seconds, OnStop on_stop) {
  const std::scoped_lock lock(mutex_);
  if (child_ >= 0) {  // if the child has terminated since the last question, stop() cleans up
    pollfd state{fd_, 0, 0};
    if (::poll(&state, 1, 0) > 0 && (state.revents & (POLLHUP | POLLERR)) != 0) stop();
  }
  if (child_ < 0) {
    try {
      start_locked(on_stop);
    } catch (const Interrupted&) {
      throw;
    } catch (const Error& error) {  // the child was started before, so the question is not the cause
      throw RunError(error.what());
    }
  }
  return exchange(question, seconds, on_stop);
}

Json PythonService::start_locked(OnStop on_stop) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    fail_run(operation_, "{}: {}", what_, std::strerror(errno));
  }
  fd_ = ends[0];
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  // Close all other descriptors in the child. Otherwise the socket of an HTTP client could stay open until the child
  // ends.
  posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  const std::string python = python_interpreter();
  const int error = spawn_python(child_, script_, {}, actions);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  if (error != 0) {
    child_ = -1;
    stop();
    fail(operation_, "{}: cannot start Python ({}): {}; set LAZY_PYTHON to use another interpreter", what_, python,
         std::strerror(error));
  }
  Json answer;
  try {
    answer = exchange(*first_, kStartSeconds, on_stop);
  } catch (const RunError& error) {
    throw RunError(fmt::format("{} (Python: {}; set LAZY_PYTHON to use another interpreter)", error.what(), python));
  }
  if (answer.contains("error")) {
    stop();
    const auto text = answer["error"].get<std::string>();
    if (!answer.contains("missing")) fail(operation_, "{}: {}", what_, text);
    fail(operation_, "{}: {} (Python: {}; set LAZY_PYTHON to use another interpreter)", what_, text, python);
  }
  return answer;
}

Json PythonService::exchange(const Json& question, int seconds, OnStop on_stop) {
  const auto end_at = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  const std::string out = question.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  std::string in;
  size_t sent = 0;
  while (in.empty() || in.back() != '\n') {
    if (on_stop == OnStop::end && stop_requested()) {
      stop();
      end_if_stopped(operation_);
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end_at - std::chrono::steady_clock::now()).count();
    pollfd state{fd_, static_cast<short>(sent < out.size() ? POLLIN | POLLOUT : POLLIN), 0};
    const auto wait = on_stop == OnStop::end ? std::min<int64_t>(left, kStopPoll) : left;
    const int ready = wait > 0 ? ::poll(&state, 1, static_cast<int>(wait)) : 0;
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0 && wait < left) continue;
    ssize_t n = ready;
    if (n > 0 && (state.revents & POLLOUT) != 0) {
      n = ::send(fd_, out.data() + sent, out.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n > 0) sent += static_cast<size_t>(n);
    }
    if (n > 0 && (state.revents & (POLLIN | POLLHUP)) != 0) {
      char piece[1 << 16];
      n = ::recv(fd_, piece, sizeof piece, MSG_DONTWAIT);
      if (n > 0) in.append(piece, static_cast<size_t>(n));
    }
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (n <= 0 || in.size() > kMaxAnswer) {
      stop();
      if (ready == 0) fail_run(operation_, "{}: the Python process took longer than {} s", what_, seconds);
      fail_run(operation_, "{}: the Python process has terminated", what_);
    }
  }
  Json answer = Json::parse(in, nullptr, false);
  if (!answer.is_object()) {
    stop();
    fail_run(operation_, "{}: the answer of the Python process is not a JSON object", what_);
  }
  return answer;
}

}  // namespace lazy
