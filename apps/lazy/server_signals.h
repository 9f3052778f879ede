// The signals of `lazy serve`. SIGINT, SIGTERM and SIGUSR1 ask for a drain. A second one asks to end at once, and a
// third one ends the process. SIGHUP asks to reopen the access log, or without one for a drain.
#pragma once

namespace lazy::cli {

// `has_log`: SIGHUP reopens the access log. Without, SIGHUP stays ignored if it is (`nohup`).
void install_server_signals(bool has_log);

int drain_signal();                   // the signal that asked for a drain, 0 if none
int end_signal();                     // the signal that asked to end at once, 0 if none
bool take_reopen_request();           // whether SIGHUP asked to reopen the log since the last call
const char* signal_name(int signal);  // "TERM"

// Call when the drain begins. Before, while models are loaded, a second signal ends the process.
void begin_drain();

}  // namespace lazy::cli
