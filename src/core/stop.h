// Graceful stop: SIGINT, SIGTERM and SIGUSR1 (Slurm's `--signal=USR1@120`) set a flag that long work polls.
#pragma once
#include "core/error.h"

namespace lazy {

void install_stop_handlers();  // a second SIGINT ends the process at once
bool stop_requested();
int stop_signal();                         // the signal received, 0 if none
const char* stop_signal_name(int signal);  // "SIGTERM"

// The work was stopped by a signal, after saving its state. The exit code is 128 + signal, as in shells and schedulers,
// so that unfinished work does not count as finished.
class Interrupted : public Error {
 public:
  Interrupted(const std::string& what, int signal) : Error(what), signal_(signal) {}
  int exit_code() const noexcept override { return 128 + signal_; }

 private:
  int signal_;
};

// Throws Interrupted, "OPERATION: stopped by SIGTERM", after a stop signal: for work without state to save.
void end_if_stopped(const char* operation);

}  // namespace lazy
