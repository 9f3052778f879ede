#include "train/metrics.h"

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/file.h"

namespace lazy::train {
namespace fs = std::filesystem;

namespace {

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

fs::path prepared_log(const fs::path& run, int64_t step) {
  const fs::path path = run / "log.jsonl";
  // The file is truncated in place because a full disk has no space for a copy.
  if (fs::exists(path)) fs::resize_file(path, log_up_to(read_file(path), step).size());
  return path;
}

}  // namespace

std::string log_up_to(const std::string& log, int64_t step) {
  size_t end = 0;
  while (end < log.size()) {
    const size_t newline = log.find('\n', end);
    if (newline == std::string::npos) break;
    const auto line = nlohmann::json::parse(log.begin() + static_cast<std::ptrdiff_t>(end),
                                            log.begin() + static_cast<std::ptrdiff_t>(newline), nullptr, false);
    const auto found = line.is_object() ? line.find("step") : line.end();
    if (!line.is_object() || found == line.end() || !found->is_number_integer() || found->get<int64_t>() > step) break;
    end = newline + 1;
  }
  return log.substr(0, end);
}

MetricsLog::MetricsLog(const fs::path& run, int64_t step, bool tensorboard) : lines_(prepared_log(run, step)) {
  if (tensorboard)
    events_ = std::make_unique<EventWriter>(run / "tensorboard", seconds_since_1970(), step > 0 ? step + 1 : 0);
}

void MetricsLog::write(int64_t step, int64_t tokens, double seconds, const Scalars& values) {
  nlohmann::ordered_json line{{"step", step}, {"tokens", tokens}, {"time", seconds}};
  for (const auto& [key, value] : values) line[key] = std::isfinite(value) ? nlohmann::ordered_json(value) : nullptr;
  lines_.append(line.dump() + "\n");
  if (events_) {
    Scalars scalars{{"tokens", static_cast<double>(tokens)}, {"time", seconds}};
    scalars.insert(scalars.end(), values.begin(), values.end());
    events_->scalars(step, seconds_since_1970(), scalars);
  }
}

void MetricsLog::sync() {
  lines_.sync();
  if (events_) events_->sync();
}

}  // namespace lazy::train
