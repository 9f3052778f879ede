#include "core/stop.h"

#include <csignal>

namespace lazy {
namespace {

volatile std::sig_atomic_t received = 0;

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
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool stop_requested() { return received != 0; }
int stop_signal() { return received; }

}  // namespace lazy
