// A polite end: SIGINT, SIGTERM and SIGUSR1 (Slurm's warning, `--signal=USR1@120`) set a flag that long work looks at
// between steps.
#pragma once

namespace lazy {

void install_stop_handlers();  // a second SIGINT ends the process at once
bool stop_requested();
int stop_signal();  // the signal received, 0 if none
const char* stop_signal_name(int signal);  // "SIGTERM"

}  // namespace lazy
