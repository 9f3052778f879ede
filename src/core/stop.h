// A polite end: SIGINT, SIGTERM and SIGUSR1 (Slurm's warning, `--signal=USR1@120`) set a flag that long work looks at
// between steps.
#pragma once
#include "core/error.h"

namespace lazy {

void install_stop_handlers();  // a second SIGINT ends the process at once
bool stop_requested();
int stop_signal();                         // the signal received, 0 if none
const char* stop_signal_name(int signal);  // "SIGTERM"

// A signal asked the work to end, and what had to be saved is saved. The exit code is the convention that schedulers
// and shells know, 128 + signal, so that unfinished work does not count as finished.
class Interrupted : public Error {
 public:
  Interrupted(const std::string& what, int signal) : Error(what), signal_(signal) {}
  int exit_code() const noexcept override { return 128 + signal_; }

 private:
  int signal_;
};

// Throws Interrupted, "OPERATION: stopped by SIGTERM", where a signal asked to end: for work that has nothing to save.
void end_if_stopped(const char* operation);

}  // namespace lazy
