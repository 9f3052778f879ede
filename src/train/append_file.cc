#include "train/append_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace lazy::train {

AppendFile::AppendFile(const std::filesystem::path& path) : path_(path) {
  fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0) fail_run("write", "{}: {}", path.string(), std::strerror(errno));
}

AppendFile::~AppendFile() {
  if (fd_ >= 0) ::close(fd_);
}

void AppendFile::append(std::string_view record) {
  const off_t before = ::lseek(fd_, 0, SEEK_END);
  while (!record.empty()) {
    const ssize_t n = ::write(fd_, record.data(), record.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int error = errno;
      // What follows a part of a record could not be read; the bytes are there to give back.
      if (before >= 0 && ::ftruncate(fd_, before) != 0)
        fail_run("write", "{}: {}", path_.string(), std::strerror(errno));
      fail_run("write", "{}: {}", path_.string(), std::strerror(error));
    }
    record.remove_prefix(static_cast<size_t>(n));
  }
}

void AppendFile::sync() {
  while (::fsync(fd_) != 0) {
    if (errno != EINTR) fail_run("write", "{}: {}", path_.string(), std::strerror(errno));
  }
}

}  // namespace lazy::train
