// A Python child process that lives as long as its owner and answers each line of JSON with one line of JSON.
#pragma once
#include <sys/types.h>

#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace lazy {

// Thread-safe. The child is started by the first question and, after it has ended or was stopped, by the next one.
class PythonService {
 public:
  // `operation` and `what` begin the messages of errors: "serve", "chat template". `script`: the child's source. It
  // receives `first` as its first line and answers {"ready": true, ...} or {"error": "..."}; `"missing": true` in the
  // latter says that a package is missing. Later questions are answered in order.
  PythonService(const char* operation, std::string what, std::string script, nlohmann::ordered_json first);
  ~PythonService();

  // Starts the child if it does not run. Returns its answer to the first line. Throws Error if Python or a package is
  // missing or the script refuses the first line, RunError if it ends or does not answer in time.
  nlohmann::ordered_json start();

  // Throws RunError and stops the child if no answer arrives within `seconds`. The answer may hold "error".
  nlohmann::ordered_json ask(const nlohmann::ordered_json& question, int seconds);

 private:
  nlohmann::ordered_json start_locked();
  nlohmann::ordered_json exchange(const nlohmann::ordered_json& question, int seconds);
  void stop();

  const char* operation_;
  std::string what_, script_;
  std::unique_ptr<nlohmann::ordered_json> first_;
  std::mutex mutex_;
  pid_t child_ = -1;
  int fd_ = -1;
};

}  // namespace lazy
