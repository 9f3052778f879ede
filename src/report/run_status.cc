#include "report/run_status.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "core/text.h"

namespace lazy::report {
namespace fs = std::filesystem;

namespace {

// The process that trains holds this lock as long as it lives, however it ends.
bool locked(const fs::path& run) {
  const int fd = ::open((run / ".lock").c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool held = ::flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(fd);
  return held;
}

double number(const std::vector<std::pair<std::string, std::string>>& pairs, const std::string& key) {
  for (const auto& [name, value] : pairs) {
    if (name == key) return std::atof(value.c_str());
  }
  return 0;
}

}  // namespace

void find_status(RunData* run) {
  run->total_steps = number(run->settings, "training.steps");  // rewritten by a resumed run, run.json is not
  if (run->total_steps == 0) run->total_steps = number(run->facts, "steps");
  if (locked(run->folder)) {
    run->state = RunData::State::running;
  } else if (fs::exists(run->folder / "model") || (run->total_steps > 0 && run->steps >= run->total_steps)) {
    run->state = RunData::State::finished;
  } else if (fs::exists(run->folder / ".lock")) {
    run->state = RunData::State::stopped;
  }
  // From the pace of the last lines, validations and checkpoints included.
  if (run->state != RunData::State::running || run->pace.size() < 2) return;
  const auto& [first_step, first_time] = run->pace.front();
  const auto& [last_step, last_time] = run->pace.back();
  if (last_step <= first_step || last_time <= first_time) return;
  run->seconds_left = (run->total_steps - last_step) * (last_time - first_time) / (last_step - first_step);
}

std::string status_text(const RunData& run) {
  if (run.state == RunData::State::running) {
    if (run.steps == 0) return fmt::format("running, no step of {:.0f} logged yet", run.total_steps);
    return fmt::format("running, step {:.0f} of {:.0f}{}", run.steps, run.total_steps,
                       run.seconds_left ? ", " + human_seconds(*run.seconds_left) + " left" : "");
  }
  if (run.state == RunData::State::stopped) {
    return fmt::format("stopped at step {:.0f} of {:.0f}; lazy train {} --resume continues it", run.steps,
                       run.total_steps, (run.folder / "config.toml").string());
  }
  return "";
}

}  // namespace lazy::report
