// Graceful stop: SIGINT, SIGTERM and SIGUSR1 (Slurm's `--signal=USR1@120`) set a flag that long-running work polls.
#pragma once
#include <string>

#include "core/error.h"

namespace lazy {

void install_stop_handlers();  // a second SIGINT terminates the process immediately
bool stop_requested();
int stop_signal();                         // the received signal; 0 if none
const char* stop_signal_name(int signal);  // for example "SIGTERM"

// Thrown when work has ended because of a stop signal and has saved its state. The exit code is 128 + signal, as in
// shells and schedulers, so that unfinished work is not considered finished.
class Interrupted : public Error {
 public:
  Interrupted(const std::string& what, int signal) : Error(what), signal_(signal) {}
  int exit_code() const noexcept override { return 128 + signal_; }

 private:
  int signal_;
};

// Throws Interrupted with "OPERATION: stopped by SIGTERM" if a stop signal has been received. Called by work that has
// no state to save. `result` says what the interrupted work leaves, for example "nothing was written".
void end_if_stopped(const char* operation, const std::string& result = "");

// While an object of this class exists, a stop signal ends the process immediately, with the message and the exit code
// of end_if_stopped(). The class is for long computations that cannot poll stop_requested() and have no state to save.
// Destructors do not run when the process ends, so no file may be written while the object exists. At most one object
// may exist at a time.
class StopEndsProcess {
 public:
  explicit StopEndsProcess(const char* operation);  // ends the process if a signal has already been received
  ~StopEndsProcess();
  StopEndsProcess(const StopEndsProcess&) = delete;
  StopEndsProcess& operator=(const StopEndsProcess&) = delete;
};

}  // namespace lazy
