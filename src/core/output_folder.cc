#include "core/output_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "core/error.h"
#include "core/file.h"

namespace lazy {
namespace fs = std::filesystem;

namespace {

constexpr const char* kMarker = ".lazy-unfinished";

// Removes TARGET.tmp-* folders that contain our marker file if no process holds its lock. If the file system does not
// support locks, no folder is removed.
void remove_leftovers(const fs::path& target) {
  const std::string prefix = target.filename().string() + ".tmp-";
  const fs::path parent = target.has_parent_path() ? target.parent_path() : fs::path(".");
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(parent, error)) {
    if (!entry.path().filename().string().starts_with(prefix) || entry.is_symlink() || !entry.is_directory()) continue;
    const int marker = ::open((entry.path() / kMarker).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (marker < 0) continue;
    if (::flock(marker, LOCK_EX | LOCK_NB) == 0) fs::remove_all(entry.path(), error);
    ::close(marker);
  }
}

// Writes and locks the marker file, and returns its descriptor, which holds the lock. The file is renamed to its final
// name after it is locked, so that no other process sees it unlocked.
int mark(const fs::path& folder) {
  const fs::path unnamed = folder / (std::string(kMarker) + "-new");
  const int fd = ::open(unnamed.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) fail_run("write", "{}: {}", folder.string(), std::strerror(errno));
  std::error_code error;
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) {
    fs::rename(unnamed, folder / kMarker, error);
  } else {
    fs::remove(unnamed, error);  // without a lock and a marker, remove_leftovers() never removes the folder
  }
  return fd;
}

}  // namespace

fs::path new_folder(const fs::path& folder, const char* operation) {
  fs::path target = fs::absolute(folder).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();  // removes a trailing slash
  if (fs::exists(target) && !(fs::is_directory(target) && fs::is_empty(target))) {
    fail(operation, "{}: expected a folder that does not exist yet", target.string());
  }
  return target;
}

OutputFolder::OutputFolder(const fs::path& target) : target_(resolve_link(target)) {
  std::error_code error;
  if (target_.has_parent_path()) fs::create_directories(target_.parent_path(), error);
  if (error) fail_run("write", "{}: {}", target_.parent_path().string(), error.message());
  remove_leftovers(target_);
  std::string name = target_.string() + ".tmp-XXXXXX";
  if (!::mkdtemp(name.data())) fail_run("write", "{}: {}", name, std::strerror(errno));
  path_ = name;
  fs::permissions(path_, fs::perms(0777 & ~file_mode_mask()), error);  // mkdtemp permits access only for the owner
  try {
    lock_ = mark(path_);
  } catch (...) {
    fs::remove_all(path_, error);
    throw;
  }
}

OutputFolder::~OutputFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
  if (lock_ >= 0) ::close(lock_);
}

void OutputFolder::unmark() {
  std::error_code ignored;
  fs::remove(path_ / kMarker, ignored);
}

void OutputFolder::publish(bool replace) {
  unmark();
  sync_directory(path_);
  const fs::path finished = std::exchange(path_, {});
  const auto rename = [&](unsigned flags) {
    return ::renameat2(AT_FDCWD, finished.c_str(), AT_FDCWD, target_.c_str(), flags) == 0 ? 0 : errno;
  };
  std::error_code error;
  int code = rename(RENAME_NOREPLACE);
  const bool unsupported = code == EINVAL || code == ENOSYS || code == ENOTSUP;
  if (unsupported) code = fs::exists(target_) ? EEXIST : rename(0);
  if (code == EEXIST) {
    if (!replace && !(fs::is_directory(target_) && fs::is_empty(target_, error))) {
      fail_run("write",
               "{}: was created by another process in the meantime and is not replaced; the result is kept as {}",
               target_.string(), finished.string());
    }
    code = unsupported ? EINVAL : rename(RENAME_EXCHANGE);
    if (code == 0) {
      fs::remove_all(finished, error);  // `finished` now contains the previous target
    } else {
      const fs::path former = finished.string() + ".old";
      fs::rename(target_, former, error);
      if (error)
        fail_run("write", "{}: {}; the result is kept as {}", target_.string(), error.message(), finished.string());
      code = rename(0);
      if (code != 0) {
        fs::rename(former, target_, error);
      } else {
        fs::remove_all(former, error);
      }
    }
  }
  if (code != 0) {
    fail_run("write", "{}: {}; the result is kept as {}", target_.string(), std::strerror(code), finished.string());
  }
  sync_directory(target_.parent_path());
}

}  // namespace lazy
