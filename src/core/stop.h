// A polite end: SIGINT and SIGTERM set a flag that long work looks at between steps.
#pragma once

namespace lazy {

void install_stop_handlers();  // a second SIGINT ends the process at once
bool stop_requested();
int stop_signal();  // the signal received, 0 if none

}  // namespace lazy
