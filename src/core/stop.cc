#include "core/stop.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <string>

#include "core/terminal.h"

namespace lazy {
namespace {

// The number of the received stop signal, or 0. Set by the signal handler and read by any thread.
std::atomic<int> received = 0;
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler must not lock");

std::string stop_message(const char* operation, int signal) {
  return fmt::format("{}: stopped by {}", operation, stop_signal_name(signal));
}

// The lines that the signal handler writes to stderr before it ends the process, while a StopEndsProcess exists (one
// line per signal). They are formatted before the signal arrives, because a signal handler must not allocate memory.
struct LastLines {
  std::string interrupt, terminate, user;
};
LastLines last_lines;
std::atomic<const LastLines*> ends_process = nullptr;
static_assert(std::atomic<const LastLines*>::is_always_lock_free, "a signal handler must not lock");

[[noreturn]] void end_process(const LastLines& lines, int signal) {
  const std::string& line = signal == SIGINT ? lines.interrupt : signal == SIGUSR1 ? lines.user : lines.terminate;
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  ::_exit(128 + signal);
}

void on_signal(int signal) {
  if (const LastLines* lines = ends_process) end_process(*lines, signal);
  if (received == SIGINT && signal == SIGINT) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
  received = signal;
}

}  // namespace

void install_stop_handlers() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_ONSTACK;  // handlers need a separate stack on threads that call oneDNN (ops/signal_stack.h)
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGUSR1, &action, nullptr);
}

bool stop_requested() { return received != 0; }
int stop_signal() { return received; }
const char* stop_signal_name(int signal) {
  return signal == SIGINT ? "SIGINT" : signal == SIGUSR1 ? "SIGUSR1" : "SIGTERM";
}

void end_if_stopped(const char* operation, const std::string& result) {
  if (!stop_requested()) return;
  throw Interrupted(stop_message(operation, stop_signal()) + (result.empty() ? "" : "; " + result), stop_signal());
}

StopEndsProcess::StopEndsProcess(const char* operation) {
  const char* const before = is_terminal(STDERR_FILENO) ? "\n" : "";  // a progress bar may occupy the current line
  const auto line = [&](int signal) { return fmt::format("{}lazy: {}\n", before, stop_message(operation, signal)); };
  last_lines = {line(SIGINT), line(SIGTERM), line(SIGUSR1)};
  ends_process = &last_lines;
  if (stop_requested()) end_process(last_lines, stop_signal());
}

StopEndsProcess::~StopEndsProcess() { ends_process = nullptr; }

}  // namespace lazy
