// A training run that is small enough for tests: a corpus of random words, a model with two layers, and helpers to
// inspect the results.
#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "scratch.h"
#include "train/config.h"

namespace lazy::train {

// Creates a corpus of sentences over a small vocabulary, drawn with a fixed seed and prepared with the `bytes`
// tokenizer. The corpus is created once per process.
const std::filesystem::path& tiny_corpus();

// Writes a configuration file to `folder` that trains on tiny_corpus() with the output `folder`/run. `kind` is "lazy"
// or "transformer". `more` is TOML text that is appended to the file.
std::filesystem::path write_tiny_config(const std::filesystem::path& folder, const std::string& kind = "lazy",
                                        const std::string& more = "");

// Returns the lines of log.jsonl without values that depend on the clock or the machine.
std::vector<nlohmann::ordered_json> log_without_times(const std::filesystem::path& run);
std::vector<double> losses(const std::filesystem::path& run);

// Returns whether both folders contain the same files with the same bytes. Otherwise the message describes the
// difference.
::testing::AssertionResult same_files(const std::filesystem::path& a, const std::filesystem::path& b,
                                      const std::vector<std::string>& names);

// Returns the last line of the output, which contains the error message.
std::string last_line(const std::string& text);

struct Ended {
  int exit_code = -1;  // -1 if the process was terminated by a signal
  int signal = 0;
  std::string output, errors;
};

// Runs `lazy train ...` or another command in a separate process.
class Child {
 public:
  using Environment = std::vector<std::pair<std::string, std::string>>;
  // If `max_file_bytes` is not 0, no file may become larger than this. This simulates a full disk.
  Child(const std::vector<std::string>& arguments, const std::filesystem::path& scratch, int64_t max_file_bytes = 0,
        const Environment& environment = {}, const std::string& command = "train");
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)), output_(other.output_), errors_(other.errors_) {}
  ~Child();  // kills the process if it is still running
  void send(int signal) const;
  Ended wait();
  // Waits until the log of `run` has a line for `step` or a later step. Returns false if the process ended before that.
  bool wait_for_step(const std::filesystem::path& run, int64_t step);

 private:
  int pid_ = -1;
  std::filesystem::path output_, errors_;
};

inline Ended run_lazy(const std::vector<std::string>& arguments, const std::filesystem::path& scratch,
                      int64_t max_file_bytes = 0, const std::string& command = "train") {
  return Child(arguments, scratch, max_file_bytes, {}, command).wait();
}

}  // namespace lazy::train
