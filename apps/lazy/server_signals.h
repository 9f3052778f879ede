// Signals of `lazy serve`. SIGINT, SIGTERM and SIGUSR1 request a drain. A second such signal cancels the running
// requests, and a third one ends the process. SIGHUP reopens the access log, or requests a drain if the
// server does not write an access log.
#pragma once

namespace lazy::cli {

// Installs the signal handlers. With has_log, SIGHUP reopens the access log. Without a log, SIGHUP remains ignored if
// it was ignored before (`nohup`).
void install_server_signals(bool has_log);

int drain_signal();                   // the signal that requested a drain, or 0
int end_signal();                     // the signal that requested an immediate end, or 0
bool take_reopen_request();           // whether SIGHUP was received since the last call
const char* signal_name(int signal);  // for example "TERM" for SIGTERM

// Marks the beginning of the drain. Before this call, while models are loaded, a second signal ends the process.
void begin_drain();

}  // namespace lazy::cli
