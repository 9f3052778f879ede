#include "data/corpus/source.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <set>

#include "core/error.h"
#include "core/stop.h"

namespace lazy {
namespace fs = std::filesystem;

namespace {

constexpr size_t kReadBytes = 1 << 20;

// The file itself, or standard input.
class PlainStream final : public ByteStream {
 public:
  explicit PlainStream(const fs::path& path) : name_(path == "-" ? "standard input" : path.string()) {
    fd_ = path == "-" ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd_ < 0) fail("data", "{}: {}", name_, std::strerror(errno));
  }
  ~PlainStream() override {
    if (fd_ > STDIN_FILENO) ::close(fd_);
  }
  PlainStream(const PlainStream&) = delete;
  PlainStream& operator=(const PlainStream&) = delete;
  bool read(std::string& out) override {
    const size_t before = out.size();
    out.resize(before + kReadBytes);
    if (fd_ == STDIN_FILENO) wait_for_input();
    ssize_t n;
    do {
      n = ::read(fd_, out.data() + before, kReadBytes);
    } while (n < 0 && errno == EINTR);
    if (n < 0) fail("data", "{}: {}", name_, std::strerror(errno));
    out.resize(before + static_cast<size_t>(n));
    consumed_ += static_cast<uint64_t>(n);
    return n > 0;
  }
  uint64_t consumed() const override { return consumed_; }
  const std::string& name() const { return name_; }

 private:
  // Polls, so that a stop request is seen while a terminal is idle.
  void wait_for_input() {
    pollfd input{fd_, POLLIN, 0};
    while (::poll(&input, 1, 200) == 0) {
      if (stop_requested()) fail_run("data", "stopped while waiting for standard input");
    }
  }
  std::string name_;
  int fd_ = -1;
  uint64_t consumed_ = 0;
};

// Base of the decompressors: compressed input, refilled on demand.
class CompressedStream : public ByteStream {
 public:
  CompressedStream(std::unique_ptr<PlainStream> file, std::string begin)
      : file_(std::move(file)), input_(std::move(begin)) {}
  uint64_t consumed() const override { return file_->consumed(); }

 protected:
  // False at the end of the file.
  bool refill() {
    if (at_ < input_.size()) return true;
    input_.clear();
    at_ = 0;
    return file_->read(input_);
  }
  [[noreturn]] void cut_short(const char* kind) const {
    fail("data", "{}: the {} archive is cut short", file_->name(), kind);
  }
  [[noreturn]] void damaged(const char* kind, const char* why) const {
    fail("data", "{}: the {} archive is damaged: {}", file_->name(), kind, why ? why : "unknown error");
  }
  std::unique_ptr<PlainStream> file_;
  std::string input_;
  size_t at_ = 0;
};

class GzipStream final : public CompressedStream {
 public:
  GzipStream(std::unique_ptr<PlainStream> file, std::string begin)
      : CompressedStream(std::move(file), std::move(begin)) {
    if (inflateInit2(&z_, 15 + 16) != Z_OK) fail_run("data", "zlib could not start");
  }
  ~GzipStream() override { inflateEnd(&z_); }
  bool read(std::string& out) override {
    const size_t before = out.size();
    while (out.size() == before) {
      if (!refill()) {
        if (inside_) cut_short("gzip");
        return false;
      }
      if (!inside_) {  // a file may hold several archives
        inflateReset(&z_);
        inside_ = true;
      }
      out.resize(before + kReadBytes);
      z_.next_in = reinterpret_cast<Bytef*>(input_.data() + at_);
      z_.avail_in = static_cast<uInt>(input_.size() - at_);
      z_.next_out = reinterpret_cast<Bytef*>(out.data() + before);
      z_.avail_out = kReadBytes;
      const int status = inflate(&z_, Z_NO_FLUSH);
      at_ = input_.size() - z_.avail_in;
      out.resize(before + kReadBytes - z_.avail_out);
      if (status == Z_STREAM_END) {
        inside_ = false;
      } else if (status != Z_OK && status != Z_BUF_ERROR) {
        damaged("gzip", z_.msg);
      }
    }
    return true;
  }

 private:
  z_stream z_{};
  bool inside_ = true;
};

class ZstdStream final : public CompressedStream {
 public:
  ZstdStream(std::unique_ptr<PlainStream> file, std::string begin)
      : CompressedStream(std::move(file), std::move(begin)), z_(ZSTD_createDCtx()) {
    if (!z_) fail_run("data", "zstd could not start");
    ZSTD_DCtx_setParameter(z_, ZSTD_d_windowLogMax, 31);  // archives made with --long
  }
  ~ZstdStream() override { ZSTD_freeDCtx(z_); }
  ZstdStream(const ZstdStream&) = delete;
  ZstdStream& operator=(const ZstdStream&) = delete;
  bool read(std::string& out) override {
    const size_t before = out.size();
    while (out.size() == before) {
      if (!full_ && !refill()) {
        if (inside_) cut_short("zstd");
        return false;
      }
      out.resize(before + kReadBytes);
      ZSTD_inBuffer in{input_.data(), input_.size(), at_};
      ZSTD_outBuffer to{out.data() + before, kReadBytes, 0};
      const size_t status = ZSTD_decompressStream(z_, &to, &in);
      if (ZSTD_isError(status)) damaged("zstd", ZSTD_getErrorName(status));
      at_ = in.pos;
      out.resize(before + to.pos);
      inside_ = status != 0;
      full_ = inside_ && to.pos == kReadBytes;  // there may be more without any further input
    }
    return true;
  }

 private:
  ZSTD_DCtx* z_;
  bool inside_ = true, full_ = false;
};

// An uncompressed stream whose first bytes have been read already.
class BegunStream final : public CompressedStream {
 public:
  using CompressedStream::CompressedStream;
  bool read(std::string& out) override {
    if (input_.empty()) return file_->read(out);
    out += input_;
    input_.clear();
    return true;
  }
};

}  // namespace

std::unique_ptr<ByteStream> open_stream(const fs::path& path) {
  auto file = std::make_unique<PlainStream>(path);
  std::string begin;
  while (begin.size() < 4 && file->read(begin)) {
  }
  if (begin.starts_with("\x1F\x8B")) return std::make_unique<GzipStream>(std::move(file), std::move(begin));
  if (begin.starts_with("\x28\xB5\x2F\xFD")) return std::make_unique<ZstdStream>(std::move(file), std::move(begin));
  const std::string ending = path.extension().string();
  if (ending == ".gz" || ending == ".zst") {
    fail("data", "{}: expected a {} archive, its first bytes are not one's", path.string(),
         ending == ".gz" ? "gzip" : "zstd");
  }
  return std::make_unique<BegunStream>(std::move(file), std::move(begin));
}

namespace {

std::optional<TextFormat> format_of(fs::path name) {
  if (name.extension() == ".parquet") return TextFormat::parquet;
  if (name.extension() == ".gz" || name.extension() == ".zst") name.replace_extension();
  const std::string ending = name.extension().string();
  if (ending == ".txt" || ending == ".text" || ending == ".md") return TextFormat::plain;
  if (ending == ".jsonl") return TextFormat::json_lines;
  if (ending == ".pod") return TextFormat::pod;
  return std::nullopt;
}

}  // namespace

bool is_code(const fs::path& name) {
  static const std::set<std::string> endings{
      ".c",  ".cc",    ".cpp",   ".cxx",  ".h",   ".hh",  ".hpp", ".cu",    ".cuh",  ".py",   ".pyi",
      ".pl", ".pm",    ".rb",    ".js",   ".mjs", ".ts",  ".tsx", ".jsx",   ".go",   ".rs",   ".java",
      ".kt", ".scala", ".swift", ".cs",   ".php", ".lua", ".r",   ".jl",    ".m",    ".hs",   ".ml",
      ".ex", ".erl",   ".clj",   ".lisp", ".el",  ".sh",  ".sql", ".cmake", ".toml", ".yaml", ".yml"};
  return endings.contains(name.extension().string());
}

std::vector<Source> find_sources(const std::vector<std::string>& inputs, TextFormat other, bool code) {
  std::vector<Source> sources;
  bool standard_input_seen = false;
  for (const std::string& input : inputs) {
    const fs::path path = input;
    if (input == "-") {
      if (standard_input_seen) fail("data", "standard input (-) is named twice");
      if (other == TextFormat::parquet) fail("data", "standard input: Parquet is read from regular files only");
      standard_input_seen = true;
      sources.push_back({path, other, 0});
      continue;
    }
    if (!fs::exists(path)) fail("data", "{}: no such file or folder", input);
    if (!fs::is_directory(path)) {
      const uint64_t bytes = fs::is_regular_file(path) ? fs::file_size(path) : 0;
      sources.push_back({path, format_of(path).value_or(other), bytes});
      continue;
    }
    std::vector<Source> found;
    try {
      for (const auto& entry : fs::recursive_directory_iterator(path)) {
        if (!entry.is_regular_file()) continue;
        auto format = format_of(entry.path());
        if (!format && code && is_code(entry.path())) format = TextFormat::plain;
        if (format) found.push_back({entry.path(), *format, entry.file_size()});
      }
    } catch (const fs::filesystem_error& e) {
      fail("data", "{}: {}", e.path1().string(), e.code().message());
    }
    if (found.empty()) {
      fail("data", "{}: expected .txt, .md, .jsonl, .pod (also .gz, .zst) or .parquet files{}, found none", input,
           code ? ", or source code" : "; --code adds source code");
    }
    std::sort(found.begin(), found.end(),
              [](const Source& a, const Source& b) { return a.path.native() < b.path.native(); });
    sources.insert(sources.end(), found.begin(), found.end());
  }
  if (sources.empty()) fail("data", "no input: name files, folders or - for standard input");
  return sources;
}

}  // namespace lazy
