// A run small enough for a test: a corpus of made-up words, a model of two layers, and helpers to look at what it left.
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

// Sentences over a small vocabulary from a fixed seed, prepared with the `bytes` tokenizer; made once a process.
const std::filesystem::path& tiny_corpus();

// A configuration file in `folder` that trains on tiny_corpus() into `folder`/run.
// kind: "lazy" or "transformer". `more` is TOML text appended to it.
std::filesystem::path write_tiny_config(const std::filesystem::path& folder, const std::string& kind = "lazy",
                                        const std::string& more = "");

// The lines of log.jsonl without what depends on the clock and the machine.
std::vector<nlohmann::ordered_json> log_without_times(const std::filesystem::path& run);
std::vector<double> losses(const std::filesystem::path& run);

// True when both folders hold the same files with the same bytes; otherwise says where they differ.
::testing::AssertionResult same_files(const std::filesystem::path& a, const std::filesystem::path& b,
                                      const std::vector<std::string>& names);

// The last line, where errors stand.
std::string last_line(const std::string& text);

struct Ended {
  int exit_code = -1;  // -1 when a signal ended it
  int signal = 0;
  std::string output, errors;
};

// `lazy train ...`, or another command, in a process of its own.
class Child {
 public:
  using Environment = std::vector<std::pair<std::string, std::string>>;
  // `max_file_bytes` > 0: no file may grow beyond it, which stands for a full disk.
  Child(const std::vector<std::string>& arguments, const std::filesystem::path& scratch, int64_t max_file_bytes = 0,
        const Environment& environment = {}, const std::string& command = "train");
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)), output_(other.output_), errors_(other.errors_) {}
  ~Child();  // kills it if it still runs
  void send(int signal) const;
  Ended wait();
  // Waits until `run`'s log has a line of `step` or a later one; false when the process ended before.
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
