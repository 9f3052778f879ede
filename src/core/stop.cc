#include "core/stop.h"

#include <fmt/format.h>

#include <atomic>
#include <csignal>

namespace lazy {
namespace {

// Set by the signal handler and read by any thread.
std::atomic<int> received = 0;
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler must not lock");

void on_signal(int signal) {
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
  action.sa_flags = SA_ONSTACK;  // the reason is explained in ops/signal_stack.h
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
  throw Interrupted(fmt::format("{}: stopped by {}{}{}", operation, stop_signal_name(stop_signal()),
                                result.empty() ? "" : "; ", result),
                    stop_signal());
}

}  // namespace lazy
