// A Python child process for repeated requests. It runs until the PythonService is destroyed, and answers each line of
// JSON with one line of JSON.
#pragma once
#include <sys/types.h>

#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace lazy {

// Thread-safe. The child is started by the first question. If it has terminated or was stopped, the next question
// starts it again.
class PythonService {
 public:
  // Error messages start with `operation` and `what`, for example "serve" and "chat template". `script` is the source
  // text of the child. The child receives `first` as its first line and answers {"ready": true, ...} or {"error":
  // "..."}. In the second case, `"missing": true` indicates that a package is missing. Later questions are answered in
  // order.
  PythonService(const char* operation, std::string what, std::string script, nlohmann::ordered_json first);
  ~PythonService();

  // Starts the child, after it has stopped a running child, and returns the answer to the first line. Throws Error if
  // Python or a package is missing or if the script rejects the first line. Throws RunError if the child terminates or
  // does not answer in time. Throws Interrupted and stops the child after a stop signal (core/stop.h).
  nlohmann::ordered_json start();

  // Throws RunError and stops the child if no answer arrives within `seconds`. The answer may contain the key "error".
  // A stop signal does not end the wait, because the program may need the answer to finish its work.
  nlohmann::ordered_json ask(const nlohmann::ordered_json& question, int seconds);

  // Like ask(), but for work that can be abandoned: after a stop signal, stops the child and throws Interrupted.
  nlohmann::ordered_json ask_until_stopped(const nlohmann::ordered_json& question, int seconds);

 private:
  enum class OnStop { finish, end };
  nlohmann::ordered_json ask(const nlohmann::ordered_json& question, int seconds, OnStop on_stop);
  nlohmann::ordered_json start_locked(OnStop on_stop);
  nlohmann::ordered_json exchange(const nlohmann::ordered_json& question, int seconds, OnStop on_stop);
  void stop();

  const char* operation_;
  std::string what_, script_;
  std::unique_ptr<nlohmann::ordered_json> first_;
  std::mutex mutex_;
  pid_t child_ = -1;
  int fd_ = -1;
};

}  // namespace lazy
