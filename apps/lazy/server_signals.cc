#include "server_signals.h"

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <ctime>

namespace lazy::cli {
namespace {

// The signals of drain_signal() and end_signal(), and the time of the last one. Signal handlers set these variables,
// and any thread reads them.
std::atomic<int> first_signal = 0, second_signal = 0;
std::atomic<int64_t> last_at = 0;
std::atomic<bool> reopen_requested = false, draining = false;
static_assert(std::atomic<int64_t>::is_always_lock_free, "a signal handler must not lock");

// One request to stop may arrive as two signals: `timeout` signals the process and then its process group.
constexpr int64_t kSameRequest = 200;  // milliseconds

int64_t milliseconds() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

void on_stop(int signal) {
  const int64_t now = milliseconds();
  if (first_signal == 0) {
    first_signal = signal;
  } else if (now - last_at < kSameRequest) {
    return;
  } else if (draining && second_signal == 0) {
    second_signal = signal;
  } else {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
  last_at = now;
}

void on_reopen(int) { reopen_requested = true; }

void install(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_ONSTACK;  // run the handler on the alternate stack of ops/signal_stack.h
  ::sigaction(signal, &action, nullptr);
}

}  // namespace

void install_server_signals(bool has_log) {
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) install(signal, on_stop);
  struct sigaction inherited {};
  ::sigaction(SIGHUP, nullptr, &inherited);
  if (has_log) {
    install(SIGHUP, on_reopen);
  } else if (inherited.sa_handler != SIG_IGN) {
    install(SIGHUP, on_stop);
  }
}

int drain_signal() { return first_signal; }
int end_signal() { return second_signal; }
bool take_reopen_request() { return reopen_requested.exchange(false); }
const char* signal_name(int signal) { return ::sigabbrev_np(signal); }
void begin_drain() { draining = true; }

}  // namespace lazy::cli
