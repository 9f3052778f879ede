#include "core/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include "core/error.h"
#include "core/log.h"

namespace lazy {
namespace fs = std::filesystem;

namespace {

// Owns a file descriptor and closes it.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

Descriptor open_for_reading(const fs::path& path, size_t& size) {
  Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) fail("read", "{}: {}", path.string(), std::strerror(errno));
  struct stat info {};
  if (::fstat(file.fd, &info) != 0) fail("read", "{}: {}", path.string(), std::strerror(errno));
  if (S_ISDIR(info.st_mode)) fail("read", "{}: expected a file, found a folder", path.string());
  size = static_cast<size_t>(info.st_size);
  return Descriptor{std::exchange(file.fd, -1)};
}

}  // namespace

std::string read_file(const fs::path& path) {
  size_t size = 0;
  Descriptor file = open_for_reading(path, size);
  std::string content;
  content.reserve(size);
  char chunk[1 << 16];
  while (true) {
    const ssize_t n = ::read(file.fd, chunk, sizeof chunk);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("read", "{}: {}", path.string(), std::strerror(errno));
    if (n == 0) return content;
    content.append(chunk, static_cast<size_t>(n));
  }
}

FileWriter::FileWriter(const fs::path& path) : path_(path) {
  fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) fail_run("write", "{}: {}", path.string(), std::strerror(errno));
}

FileWriter::~FileWriter() {
  if (fd_ >= 0) ::close(fd_);
}

static void write_fully(int fd, const fs::path& path, const char* data, size_t size, int64_t offset) {
  while (size > 0) {
    const ssize_t n = offset < 0 ? ::write(fd, data, size) : ::pwrite(fd, data, size, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_run("write", "{}: {}", path.string(), std::strerror(errno));
    data += n;
    size -= static_cast<size_t>(n);
    if (offset >= 0) offset += n;
  }
}

void FileWriter::flush() {
  write_fully(fd_, path_, buffer_.data(), buffer_.size(), -1);
  buffer_.clear();
}

void FileWriter::write(const void* data, size_t size) {
  constexpr size_t kBuffer = 1 << 20;
  size_ += size;
  if (buffer_.size() + size > kBuffer) flush();
  if (size > kBuffer) {
    write_fully(fd_, path_, static_cast<const char*>(data), size, -1);
  } else {
    buffer_.append(static_cast<const char*>(data), size);
  }
}

void FileWriter::write_at(uint64_t offset, const void* data, size_t size) {
  flush();
  write_fully(fd_, path_, static_cast<const char*>(data), size, static_cast<int64_t>(offset));
}

void FileWriter::close() {
  flush();
  // Some errors are ignored, because fsync is not supported for devices and pipes (EINVAL) and by some file systems.
  if (::fsync(fd_) != 0 && errno != EINVAL && errno != ENOTSUP && errno != ENOSYS && errno != EROFS) {
    fail_run("write", "{}: {}", path_.string(), std::strerror(errno));
  }
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0) fail_run("write", "{}: {}", path_.string(), std::strerror(errno));
}

void sync_directory(const fs::path& directory) {
  const fs::path where = directory.empty() ? fs::path(".") : directory;
  Descriptor folder{::open(where.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (folder.fd >= 0 && ::fsync(folder.fd) == 0) return;
  if (folder.fd < 0 || (errno != EINVAL && errno != ENOTSUP && errno != ENOSYS)) {
    fail_run("write", "{}: {}", where.string(), std::strerror(errno));
  }
  static std::atomic<bool> warned = false;
  if (!warned.exchange(true)) {
    log::warn("{}: the file system cannot sync directories; the newest files may be lost in a power failure",
              where.string());
  }
}

fs::path resolve_link(const fs::path& path) {
  fs::path found = path;
  std::error_code error;
  for (int links = 0; links < 40 && fs::is_symlink(found, error); ++links) {
    const fs::path next = fs::read_symlink(found, error);
    if (error) break;
    found = next.is_absolute() ? next : found.parent_path() / next;
  }
  return found;
}

unsigned file_mode_mask() {
  const std::string status = read_file("/proc/self/status");
  const size_t at = status.find("Umask:");
  return at == std::string::npos ? 022 : static_cast<unsigned>(std::stoul(status.substr(at + 6), nullptr, 8));
}

// Creates an empty file PATH.tmp-XXXXXXXX with a random name and returns its path.
static fs::path create_temporary_file(const fs::path& path) {
  std::random_device random;
  while (true) {
    const fs::path name = fmt::format("{}.tmp-{:08x}", path.string(), random());
    const Descriptor file{::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644)};
    if (file.fd >= 0) return name;
    if (errno != EEXIST) fail_run("write", "{}: {}", path.string(), std::strerror(errno));
  }
}

void write_file_atomic(const fs::path& link, const std::function<void(FileWriter&)>& produce) {
  std::error_code no_file;
  const fs::file_status status = fs::status(link, no_file);
  if (fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status)) {
    FileWriter writer(link);
    produce(writer);
    writer.close();
    return;
  }
  const fs::path path = resolve_link(link), temporary = create_temporary_file(path);
  try {
    FileWriter writer(temporary);
    produce(writer);
    writer.close();
    fs::rename(temporary, path);
    sync_directory(path.parent_path());
  } catch (const std::exception& e) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    if (dynamic_cast<const Error*>(&e)) throw;
    fail_run("write", "{}: {}", path.string(), e.what());
  }
}

void write_file_atomic(const fs::path& path, std::string_view content) {
  write_file_atomic(path, [&](FileWriter& writer) { writer.write(content); });
}

void publish_directory(const fs::path& temporary, const fs::path& final_name) {
  sync_directory(temporary);
  std::error_code error;
  fs::rename(temporary, final_name, error);
  if (error) fail_run("write", "{}: {}", final_name.string(), error.message());
  sync_directory(final_name.parent_path());
}

MappedFile::MappedFile(const fs::path& path) : path_(path) {
  Descriptor file = open_for_reading(path, size_);
  if (size_ == 0) return;
  void* map = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.fd, 0);
  if (map == MAP_FAILED) {
    fail("read", "{}: {}{}", path.string(), std::strerror(errno),
         errno == ENOMEM ? "; a process cannot map more files than the limit in `sysctl vm.max_map_count`" : "");
  }
  data_ = static_cast<const std::byte*>(map);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

// Errors of madvise are ignored because the hints only affect speed.
void MappedFile::expect_scattered_reads() const {
  if (data_) ::madvise(const_cast<std::byte*>(data_), size_, MADV_RANDOM);
}

void MappedFile::read_ahead(size_t offset, size_t size) const {
  static const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t begin = offset / page * page;
  if (size > 0) ::madvise(const_cast<std::byte*>(data_) + begin, offset + size - begin, MADV_WILLNEED);
}

void MappedFile::forget(size_t offset, size_t size) const {
  static const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t begin = (offset + page - 1) / page * page,
               end = (offset + size) / page * page;  // rounded to whole pages inside the range
  if (begin < end) ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace lazy
