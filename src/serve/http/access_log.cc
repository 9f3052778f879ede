#include "serve/http/access_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>

#include "core/error.h"
#include "core/log.h"

namespace lazy::serve {

namespace {

// Formats one field of a log line. Bytes that could forge a field or a line are percent-encoded.
std::string field(const std::string& text) {
  if (text.empty()) return "-";
  std::string out;
  for (const char byte : text) {
    const bool plain = byte > ' ' && byte <= '~' && byte != '"' && byte != '\\';
    out += plain ? std::string(1, byte) : fmt::format("%{:02X}", static_cast<unsigned char>(byte));
  }
  return out;
}

std::string timestamp(std::chrono::system_clock::time_point time) {
  const auto since = time.time_since_epoch();
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(since).count() % 1000;
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
  return fmt::format("{}.{:03}Z", text, milliseconds);
}

int open_log(const std::string& path) { return ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640); }

}  // namespace

std::string access_line(const AccessRecord& record) {
  return fmt::format("{} {} {} {} {} {} {:.3f} {}\n", timestamp(record.begin), field(record.client),
                     field(record.method), field(record.path), record.status, record.bytes, record.seconds,
                     field(record.request_id));
}

AccessLog::AccessLog(const std::string& path) : path_(path) {
  fd_ = path == "-" ? STDERR_FILENO : open_log(path);
  if (fd_ < 0) fail("serve", "--access-log: {} cannot be opened: {}", path, std::strerror(errno));
}

AccessLog::~AccessLog() {
  if (path_ != "-") ::close(fd_);
}

void AccessLog::reopen() {
  if (path_ == "-") return;
  const int fresh = open_log(path_);
  // dup3 replaces the file atomically: other threads write to the old file or to the new one.
  if (fresh < 0 || ::dup3(fresh, fd_, O_CLOEXEC) < 0) {
    log::warn("serve: --access-log: {} cannot be reopened: {}", path_, std::strerror(errno));
  } else {
    warned_ = false;
  }
  if (fresh >= 0) ::close(fresh);
}

void AccessLog::write(const AccessRecord& record) {
  const std::string line = access_line(record);
  const ssize_t written = ::write(fd_, line.data(), line.size());
  if (written != static_cast<ssize_t>(line.size()) && !warned_.exchange(true)) {
    log::warn("serve: --access-log: {} cannot be written: {}", path_, std::strerror(errno));
  }
}

}  // namespace lazy::serve
