// Reads Parquet files: read_parquet.py runs in a Python process and writes JSON lines to a pipe.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "core/python_child.h"
#include "core/stop.h"
#include "core/text.h"
#include "data/corpus/source.h"
#include "parquet_script.h"

namespace lazy {
namespace fs = std::filesystem;

namespace {

constexpr size_t kPipeBytes = 1 << 20;
constexpr int kStatusFd = 3;   // file descriptor of the status file in the child process
constexpr int kNoPyarrow = 3;  // exit code of read_parquet.py if pyarrow is missing

// Owns a file descriptor and closes it.
struct Descriptor {
  explicit Descriptor(int number = -1) : fd(number) {}
  ~Descriptor() { reset(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  void reset() {
    if (fd >= 0) ::close(fd);
    fd = -1;
  }
  int fd;
};

class ParquetStream final : public ByteStream {
 public:
  ParquetStream(const fs::path& path, const std::string& column)
      : path_(path), status_(::memfd_create("status", MFD_CLOEXEC)), errors_(::memfd_create("errors", MFD_CLOEXEC)) {
    if (!fs::is_regular_file(path)) fail("data", "{}: Parquet is read from regular files only", path.string());
    bytes_ = fs::file_size(path);
    int ends[2];
    if (status_.fd < 0 || errors_.fd < 0 || ::pipe2(ends, O_CLOEXEC) != 0) {
      fail_run("data", "{}: {}", path.string(), std::strerror(errno));
    }
    pipe_.fd = ends[0];
    const Descriptor write_end(ends[1]);
    // A larger pipe buffer reduces the number of context switches. An error is ignored, because the system may refuse
    // the size.
    ::fcntl(pipe_.fd, F_SETPIPE_SZ, static_cast<int>(kPipeBytes));
    spawn(column, write_end.fd);
  }

  ~ParquetStream() override {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }

  bool read(std::string& out) override {
    if (child_ <= 0) return false;
    pollfd input{pipe_.fd, POLLIN, 0};
    while (::poll(&input, 1, 200) <= 0) stop_if_asked();
    const size_t before = out.size();
    out.resize(before + kPipeBytes);
    ssize_t n;
    do {
      n = ::read(pipe_.fd, out.data() + before, kPipeBytes);
    } while (n < 0 && errno == EINTR);
    out.resize(before + static_cast<size_t>(std::max<ssize_t>(n, 0)));
    if (n < 0) fail_run("data", "{}: {}", path_.string(), std::strerror(errno));
    if (n == 0) finish();
    return n > 0;
  }

  uint64_t consumed() const override { return child_ > 0 ? status(0) : bytes_; }
  uint64_t skipped() const override { return status(1); }

 private:
  void stop_if_asked() const { end_if_stopped("data"); }

  void spawn(const std::string& column, int write_end) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, write_end, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, errors_.fd, STDERR_FILENO);
    posix_spawn_file_actions_adddup2(&actions, status_.fd, kStatusFd);
    const int error =
        spawn_python(child_, kReadParquet, {fs::absolute(path_).string(), column, std::to_string(kStatusFd)}, actions);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) {
      child_ = -1;
      fail("data",
           "{}: reading Parquet requires Python with pyarrow; {}: {} (set LAZY_PYTHON to use another interpreter)",
           path_.string(), python_interpreter(), std::strerror(error));
    }
  }

  // Waits for the child process, which has closed the pipe, and throws Error if it did not succeed.
  void finish() {
    int status = 0;
    ::waitpid(child_, &status, 0);
    child_ = -1;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    stop_if_asked();
    const std::string said = last_error();
    if (WIFEXITED(status) && WEXITSTATUS(status) == kNoPyarrow) {
      fail("data",
           "{}: reading Parquet requires Python with pyarrow; {}: {} (run `{} -m pip install pyarrow`, or set "
           "LAZY_PYTHON to use another interpreter)",
           path_.string(), python_interpreter(), said, python_interpreter());
    }
    if (WIFSIGNALED(status)) {
      fail_run("data", "{}: the reader process {} was terminated by signal {}", path_.string(), python_interpreter(),
               WTERMSIG(status));
    }
    fail("data", "{}: {}", path_.string(), said.empty() ? "the reader process failed without a message" : said);
  }

  // Returns the last line that the child wrote to standard error: the message of the script, or the end of a traceback.
  std::string last_error() const {
    std::string text(1 << 16, '\0');
    const off_t size = ::lseek(errors_.fd, 0, SEEK_END);
    const ssize_t n =
        ::pread(errors_.fd, text.data(), text.size(), std::max<off_t>(0, size - static_cast<off_t>(text.size())));
    text.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
    const std::string_view all = strip(text);
    return escape_control(all.substr(all.rfind('\n') + 1));
  }

  uint64_t status(int which) const {
    uint64_t numbers[2] = {0, 0};
    const ssize_t n = ::pread(status_.fd, numbers, sizeof numbers, 0);
    return n == sizeof numbers ? numbers[which] : 0;
  }

  fs::path path_;
  uint64_t bytes_ = 0;
  Descriptor status_, errors_, pipe_;
  pid_t child_ = -1;
};

}  // namespace

std::unique_ptr<ByteStream> open_parquet(const fs::path& path, const std::string& column) {
  return std::make_unique<ParquetStream>(path, column);
}

}  // namespace lazy
