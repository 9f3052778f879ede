#include "eval/result_files.h"

#include <fmt/chrono.h>

#include <chrono>
#include <ctime>

#include "core/error.h"
#include "core/file.h"

namespace lazy::eval {
namespace fs = std::filesystem;
namespace {

bool is_file_name(const fs::path& output) { return output.extension() == ".json"; }

// Local time as lm-evaluation-harness puts it into names: 2025-01-31T23-59-59.123456.
std::string date_id() {
  const auto now = std::chrono::system_clock::now();
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count() % 1'000'000;
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  std::tm local{};
  ::localtime_r(&seconds, &local);
  return fmt::format("{:%Y-%m-%dT%H-%M-%S}.{:06}", local, micros);
}

}  // namespace

void check_output(const fs::path& output) {
  if (is_file_name(output) && fs::is_directory(output))
    fail("eval", "--output {}: expected a file's name, found a folder", output.string());
  if (!is_file_name(output) && fs::exists(output) && !fs::is_directory(output)) {
    fail("eval", "--output {}: expected a folder or a name that ends in .json, found a file", output.string());
  }
}

void write_results(const fs::path& output, const std::string& json, const std::vector<TaskResult>& results) {
  const std::string date = date_id();
  const fs::path folder = is_file_name(output) ? output.parent_path() : output;
  std::error_code error;
  if (!folder.empty()) fs::create_directories(folder, error);
  if (error) fail("eval", "--output {}: {}", folder.string(), error.message());
  for (const TaskResult& task : results) {
    if (!task.samples.empty())
      write_file_atomic(folder / fmt::format("samples_{}_{}.jsonl", task.name, date), task.samples);
  }
  write_file_atomic(is_file_name(output) ? output : folder / fmt::format("results_{}.json", date), json);
}

}  // namespace lazy::eval
