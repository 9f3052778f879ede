#include "train/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/error.h"
#include "core/file.h"
#include "core/log.h"

namespace lazy::train {
namespace fs = std::filesystem;

namespace {

void make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error == std::errc::not_a_directory || error == std::errc::file_exists) {
    fail("train", "{}: expected a folder at training.output, found a file", path.string());
  }
  if (error) fail_run("train", "{}: {}", path.string(), error.message());
}

// Locks the folder of a run. The operating system releases the lock when the process ends for any reason.
int lock_folder(const fs::path& run) {
  const fs::path path = run / ".lock";
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) fail_run("train", "{}: {}", path.string(), std::strerror(errno));
  int error = 0;
  // The lock is tried several times, because `lazy report` takes it briefly to find out whether a run is active.
  for (int attempt = 0; attempt < 10; ++attempt) {
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
    error = errno;
    if (error != EWOULDBLOCK) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  ::close(fd);
  if (error == EWOULDBLOCK) fail("train", "{}: another process is training in this folder", run.string());
  return -1;  // the file system does not support locks
}

// Removes the logs of an earlier attempt that wrote no checkpoint.
void remove_stale_logs(const fs::path& run) {
  if (!fs::exists(run / "run.json")) return;
  std::error_code ignored;
  fs::remove(run / "run.json", ignored);
  fs::remove(run / "log.jsonl", ignored);
  for (const char* folder : {"tensorboard", "trace", "exports"}) fs::remove_all(run / folder, ignored);
}

}  // namespace

RunFolder::RunFolder(const TrainConfig& config, bool resume)
    : path_(config.output), checkpoints_(config.output / "checkpoints", config.keep_last, config.keep_every) {
  make_folder(path_ / "checkpoints");
  lock_ = lock_folder(path_);
  checkpoints_.remove_unfinished();
  std::error_code ignored;
  fs::remove_all(path_ / ".tmp-model", ignored);
  if (resume) {
    resume_checkpoint_ = checkpoints_.newest_valid();
    if (!resume_checkpoint_) log::info("starting a new run in {}, which has no checkpoint to resume", path_.string());
  } else if (const auto steps = checkpoints_.steps(); !steps.empty() || has_model()) {
    fail("train",
         "{} contains {}; add --resume to continue it, or select another folder with --set training.output=DIR",
         path_.string(),
         steps.empty() ? "a finished model" : fmt::format("a run with a checkpoint of step {}", steps.back()));
  }
  if (!resume_checkpoint_) remove_stale_logs(path_);
}

RunFolder::~RunFolder() {
  if (lock_ >= 0) ::close(lock_);
}

bool RunFolder::has_model() const { return fs::exists(path_ / "model" / "config.json"); }

void RunFolder::describe(const TrainConfig& config, const nlohmann::ordered_json& facts) const {
  write_file_atomic(path_ / "config.toml", config.toml);
  if (!fs::exists(path_ / "run.json")) write_file_atomic(path_ / "run.json", facts.dump(1) + "\n");
}

fs::path RunFolder::publish_model(const fs::path& name, const std::function<void(const fs::path&)>& write_files) const {
  const fs::path final_name = path_ / name, temporary = path_ / ".tmp-model", previous = path_ / ".tmp-previous-model";
  try {
    fs::remove_all(temporary);
    fs::remove_all(previous);
    fs::create_directories(temporary);
    fs::create_directories(final_name.parent_path());
    write_files(temporary);
    if (fs::exists(final_name)) fs::rename(final_name, previous);
    publish_directory(temporary, final_name);
    fs::remove_all(previous);
  } catch (const std::exception& e) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    if (!fs::exists(final_name) && fs::exists(previous)) fs::rename(previous, final_name, ignored);
    throw RunError(fmt::format("{} not saved: {}", name.string(), e.what()));
  }
  return final_name;
}

}  // namespace lazy::train
