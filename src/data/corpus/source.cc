#include "data/corpus/source.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "core/error.h"
#include "core/log.h"
#include "core/stop.h"
#include "data/tokenizers/unicode.h"

namespace lazy {
namespace fs = std::filesystem;

namespace {

constexpr size_t kReadBytes = 1 << 20;

// Reads the file without decompression, or standard input.
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
  // Waits for input with a timeout, so that a stop signal is noticed even if no input arrives.
  void wait_for_input() {
    pollfd input{fd_, POLLIN, 0};
    while (::poll(&input, 1, 200) == 0) {
      end_if_stopped("data", "nothing was written");
    }
  }
  std::string name_;
  int fd_ = -1;
  uint64_t consumed_ = 0;
};

// Base class of the decompressors. refill() reads more compressed input when all of the previous input has been used.
class CompressedStream : public ByteStream {
 public:
  CompressedStream(std::unique_ptr<PlainStream> file, std::string begin)
      : file_(std::move(file)), input_(std::move(begin)) {}
  uint64_t consumed() const override { return file_->consumed(); }

 protected:
  // Reads more compressed input if the input buffer is empty. Returns false at the end of the file.
  bool refill() {
    if (at_ < input_.size()) return true;
    input_.clear();
    at_ = 0;
    return file_->read(input_);
  }
  [[noreturn]] void cut_short(const char* kind) const {
    fail("data", "{}: the {} archive is truncated", file_->name(), kind);
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
    if (inflateInit2(&z_, 15 + 16) != Z_OK) fail_run("data", "zlib could not be initialized");
  }
  ~GzipStream() override { inflateEnd(&z_); }
  bool read(std::string& out) override {
    const size_t before = out.size();
    while (out.size() == before) {
      if (!refill()) {
        if (inside_) cut_short("gzip");
        return false;
      }
      if (!inside_) {  // A file may contain several gzip members, followed by zero padding.
        if (input_[at_] == '\0') {
          if (!rest_is_zero()) damaged("gzip", "other bytes follow after the end of the archive");
          return false;
        }
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
  bool rest_is_zero() {
    while (refill()) {
      if (input_.find_first_not_of('\0', at_) != std::string::npos) return false;
      at_ = input_.size();
    }
    return true;
  }
  z_stream z_{};
  bool inside_ = true;
};

class ZstdStream final : public CompressedStream {
 public:
  ZstdStream(std::unique_ptr<PlainStream> file, std::string begin)
      : CompressedStream(std::move(file), std::move(begin)), z_(ZSTD_createDCtx()) {
    if (!z_) fail_run("data", "zstd could not be initialized");
    ZSTD_DCtx_setParameter(z_, ZSTD_d_windowLogMax, 31);  // for archives of `zstd --long`
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
      full_ = inside_ && to.pos == kReadBytes;  // the decompressor may have more output for the same input
    }
    return true;
  }

 private:
  ZSTD_DCtx* z_;
  bool inside_ = true, full_ = false;
};

// A stream whose first bytes have already been read by the format detection.
class BegunStream final : public ByteStream {
 public:
  BegunStream(std::unique_ptr<ByteStream> stream, std::string begin)
      : stream_(std::move(stream)), begin_(std::move(begin)) {}
  bool read(std::string& out) override {
    if (begin_.empty()) return stream_->read(out);
    out += begin_;
    begin_.clear();
    return true;
  }
  uint64_t consumed() const override { return stream_->consumed(); }

 private:
  std::unique_ptr<ByteStream> stream_;
  std::string begin_;
};

// A text stream that needs no conversion of its encoding. Throws Error for NUL bytes, because only binary files contain
// them.
class PlainText final : public ByteStream {
 public:
  PlainText(std::unique_ptr<ByteStream> stream, std::string begin, std::string name)
      : name_(std::move(name)), stream_(std::move(stream), begin) {
    check(begin);
  }
  bool read(std::string& out) override {
    const size_t before = out.size();
    const bool more = stream_.read(out);
    check(std::string_view(out).substr(before));
    position_ += out.size() - before;
    return more;
  }
  uint64_t consumed() const override { return stream_.consumed(); }

 private:
  void check(std::string_view bytes) const {
    if (const size_t at = bytes.find('\0'); at != std::string_view::npos)
      fail("data", "{}: expected text, found a NUL byte at byte {}", name_, position_ + at);
  }
  std::string name_;
  BegunStream stream_;
  uint64_t position_ = 0;  // number of bytes that read() has returned
};

// Converts UTF-16 or UTF-32 to UTF-8. Invalid code units become U+FFFD.
class WideStream final : public ByteStream {
 public:
  WideStream(std::unique_ptr<ByteStream> stream, size_t unit, bool big_endian)
      : stream_(std::move(stream)), unit_(unit), big_endian_(big_endian) {}
  uint64_t consumed() const override { return stream_->consumed(); }
  bool read(std::string& out) override {
    const size_t before = out.size();
    while (out.size() == before) {
      const bool more = stream_->read(input_);
      size_t at = 0;
      while (at + unit_ <= input_.size()) {
        const uint32_t first = unit_at(at);
        const bool high = unit_ == 2 && first >= 0xD800 && first < 0xDC00;
        if (high && at + 4 > input_.size() && more) break;
        const uint32_t second = high && at + 4 <= input_.size() ? unit_at(at + 2) : 0;
        const bool pair = second >= 0xDC00 && second < 0xE000;
        append_utf8(out, pair ? 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00) : first);
        at += pair ? 4 : unit_;
      }
      input_.erase(0, at);
      if (more) continue;
      if (!input_.empty()) append_utf8(out, 0xFFFD);
      input_.clear();
      return out.size() > before;
    }
    return true;
  }

 private:
  uint32_t unit_at(size_t at) const {
    uint32_t value = 0;
    for (size_t n = 0; n < unit_; ++n) {
      value = value << 8 | static_cast<unsigned char>(input_[at + (big_endian_ ? n : unit_ - 1 - n)]);
    }
    return value;
  }
  static void append_utf8(std::string& out, uint32_t c) {
    const bool surrogate = c >= 0xD800 && c < 0xE000;
    out += utf8_encode(c > 0x10FFFF || surrogate ? 0xFFFD : c);
  }
  std::unique_ptr<ByteStream> stream_;
  std::string input_;
  size_t unit_;
  bool big_endian_;
};

bool is_zstd(std::string_view begin) {
  // Both a zstd frame and a skippable frame (RFC 8878 3.1.2) are accepted.
  return begin.starts_with("\x28\xB5\x2F\xFD") ||
         (begin.size() >= 4 && (begin[0] & 0xF0) == 0x50 && begin.substr(1, 3) == "\x2A\x4D\x18");
}

// Recognizes unsupported archive formats by the first bytes of the file. Returns the name of the format and the command
// that unpacks it.
std::optional<std::pair<const char*, const char*>> unsupported_format(std::string_view begin) {
  using namespace std::literals;
  if (begin.starts_with("\xFD"
                        "7zXZ\0"sv))
    return std::pair("an xz archive", "xz -d");
  if (begin.starts_with("BZh")) return std::pair("a bzip2 archive", "bzip2 -d");
  if (begin.starts_with("PK\x03\x04")) return std::pair("a zip archive", "unzip");
  if (begin.starts_with("\x04\x22\x4D\x18")) return std::pair("an lz4 archive", "lz4 -d");
  if (begin.starts_with("7z\xBC\xAF\x27\x1C")) return std::pair("a 7-Zip archive", "7z x");
  return std::nullopt;
}

// Returns the text in UTF-8. `begin` contains the first decompressed bytes, which were already read from `stream`.
std::unique_ptr<ByteStream> decode_text(std::unique_ptr<ByteStream> stream, std::string begin,
                                        const std::string& name) {
  using namespace std::literals;
  while (begin.size() < 4 && stream->read(begin)) {
  }
  struct Mark {
    std::string_view bytes;
    size_t unit;
    bool big_endian;
  };
  for (const Mark& mark : {Mark{"\xFF\xFE\0\0"sv, 4, false}, Mark{"\0\0\xFE\xFF"sv, 4, true},
                           Mark{"\xFF\xFE"sv, 2, false}, Mark{"\xFE\xFF"sv, 2, true}}) {
    if (!begin.starts_with(mark.bytes)) continue;
    begin.erase(0, mark.bytes.size());
    auto begun = std::make_unique<BegunStream>(std::move(stream), std::move(begin));
    return std::make_unique<WideStream>(std::move(begun), mark.unit, mark.big_endian);
  }
  if (const auto format = unsupported_format(begin)) {
    fail("data", "{}: expected text, found {} (decompress it with `{}` first)", name, format->first, format->second);
  }
  if (begin.starts_with("PAR1")) fail("data", "{}: expected text, found a Parquet file (use --format parquet)", name);
  if (begin.starts_with("ustar") || (begin.size() > 262 && begin.compare(257, 5, "ustar") == 0)) {
    fail("data", "{}: expected text, found a tar archive (extract it with `tar -x` first)", name);
  }
  return std::make_unique<PlainText>(std::move(stream), std::move(begin), name);
}

// Returns the file name extension in lower case, ignoring the extension of a compression format.
std::string ending_of(fs::path name, bool* compressed = nullptr) {
  const auto lower = [&] {
    std::string ending = name.extension().string();
    for (char& c : ending) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    return ending;
  };
  const std::string ending = lower();
  const bool packed = ending == ".gz" || ending == ".gzip" || ending == ".zst" || ending == ".zstd";
  if (compressed) *compressed = packed;
  if (!packed) return ending;
  name.replace_extension();
  return lower();
}

}  // namespace

std::unique_ptr<ByteStream> open_stream(const fs::path& path) {
  auto file = std::make_unique<PlainStream>(path);
  const std::string name = file->name();
  std::string begin;
  while (begin.size() < 4 && file->read(begin)) {
  }
  std::unique_ptr<ByteStream> stream;
  if (begin.starts_with("\x1F\x8B")) {
    stream = std::make_unique<GzipStream>(std::move(file), std::move(begin));
  } else if (is_zstd(begin)) {
    stream = std::make_unique<ZstdStream>(std::move(file), std::move(begin));
  } else {
    bool compressed = false;
    ending_of(path, &compressed);
    if (compressed) {
      fail("data", "{}: expected a gzip or zstd archive, but the first bytes belong to neither format", path.string());
    }
    return decode_text(std::move(file), std::move(begin), name);
  }
  return decode_text(std::move(stream), "", name);
}

std::string read_text(const fs::path& path) {
  std::string text;
  const auto stream = open_stream(path);
  while (stream->read(text)) {
  }
  if (!is_valid_utf8(text)) {
    size_t at = 0;
    while (const size_t length = utf8_length(text, at)) at += length;
    fail("data", "{}: expected text in UTF-8, found the invalid byte 0x{:02x} at byte {}",
         path == "-" ? "standard input" : path.string(), static_cast<unsigned char>(text[at]), at);
  }
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  return text;
}

namespace {

std::optional<TextFormat> format_of(const fs::path& name) {
  bool compressed = false;
  const std::string ending = ending_of(name, &compressed);
  if (ending == ".parquet" && !compressed) return TextFormat::parquet;
  if (ending == ".txt" || ending == ".text" || ending == ".md" || ending == ".rst") return TextFormat::plain;
  if (ending == ".jsonl" || ending == ".ndjson" || ending == ".jsonlines") return TextFormat::json_lines;
  if (ending == ".pod") return TextFormat::pod;
  return std::nullopt;
}

// Returns the format of a file that the user has named, for any extension. `other` is the format for unknown
// extensions. If `other` is not set, a .json file is read as JSON lines if it starts with an object.
TextFormat format_of_named(const fs::path& path, std::optional<TextFormat> other, bool code) {
  if (const auto format = format_of(path)) return *format;
  if (other) return *other;
  if (code && is_code(path)) return TextFormat::plain;
  if (!fs::is_regular_file(path)) return TextFormat::plain;  // a pipe, whose content cannot be inspected in advance
  if (ending_of(path) == ".json") {
    std::string begin;
    open_stream(path)->read(begin);
    const size_t at = begin.find_first_not_of(" \t\r\n");
    if (at != std::string::npos && begin[at] == '{') return TextFormat::json_lines;
    fail("data", "{}: expected JSON lines, found a single JSON value", path.string());
  }
  open_stream(path);  // throws Error if the file is an archive or binary
  fail("data", "{}: the file name extension is unknown; add --format text, jsonl, pod or parquet", path.string());
}

// Returns whether the file describes the folder (such as README or LICENSE) and is not part of its text.
bool is_about_the_folder(const fs::path& path) {
  std::string stem = path.stem().string();
  for (char& c : stem) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
  return stem == "README" || stem == "LICENSE" || stem == "LICENCE" || stem == "NOTICE" || stem == "CITATION";
}

// Finds the text files of a folder. Hidden names are skipped, links are followed, and each folder is read only once.
class FolderSearch {
 public:
  explicit FolderSearch(bool code) : code_(code) {}
  void visit(const fs::path& folder) {
    if (!visited_.insert(fs::canonical(folder)).second) return;
    for (const auto& entry : fs::directory_iterator(folder)) {
      const fs::path& path = entry.path();
      if (path.filename().string().starts_with('.')) continue;
      if (entry.is_directory()) {
        visit(path);
      } else if (entry.is_regular_file()) {
        add(path, entry.file_size());
      }
    }
  }
  std::vector<Source> found;
  std::map<std::string, int64_t> left_out;  // number of skipped files by extension

 private:
  void add(const fs::path& path, uint64_t bytes) {
    auto format = format_of(path);
    if (!format && code_ && is_code(path)) format = TextFormat::plain;
    if (format && !is_about_the_folder(path)) {
      found.push_back({path, *format, bytes});
    } else {
      const std::string ending = ending_of(path);
      ++left_out[format ? path.filename().string() : ending.empty() ? "without an ending" : ending];
    }
  }
  bool code_;
  std::set<fs::path> visited_;
};

}  // namespace

TextFacts text_facts(const std::vector<Source>& sources) {
  constexpr int64_t kCompression = 4;          // assumed number of text bytes per compressed byte
  constexpr int64_t kManyDocuments = 1 << 20;  // assumed number of documents in a JSON lines or Parquet file
  TextFacts facts;
  for (const Source& source : sources) {
    bool compressed = false;
    ending_of(source.path, &compressed);
    const bool packed = compressed || source.format == TextFormat::parquet;
    const int64_t bytes = static_cast<int64_t>(source.bytes) * (packed ? kCompression : 1);
    facts.bytes += bytes;
    if (is_code(source.path)) facts.code_bytes += bytes;
    facts.exact = facts.exact && !packed && source.bytes > 0;  // the size of a pipe is unknown
    const bool many = source.format == TextFormat::json_lines || source.format == TextFormat::parquet;
    facts.documents += many ? kManyDocuments : 1;
    const fs::path ending = source.path.extension();
    ++facts.files[ending.empty() ? "no ending" : ending.string()];
  }
  return facts;
}

bool is_code(const fs::path& name) {
  static const std::set<std::string> endings{
      ".c",  ".cc",    ".cpp",   ".cxx",  ".h",   ".hh",  ".hpp", ".cu",    ".cuh",  ".py",   ".pyi",
      ".pl", ".pm",    ".rb",    ".js",   ".mjs", ".ts",  ".tsx", ".jsx",   ".go",   ".rs",   ".java",
      ".kt", ".scala", ".swift", ".cs",   ".php", ".lua", ".r",   ".jl",    ".m",    ".hs",   ".ml",
      ".ex", ".erl",   ".clj",   ".lisp", ".el",  ".sh",  ".sql", ".cmake", ".toml", ".yaml", ".yml"};
  return endings.contains(ending_of(name));
}

std::vector<Source> find_sources(const std::vector<std::string>& inputs, std::optional<TextFormat> other, bool code) {
  std::vector<Source> sources;
  bool standard_input_seen = false;
  for (const std::string& input : inputs) {
    const fs::path path = input;
    if (input == "-") {
      if (standard_input_seen) fail("data", "standard input (-) was given twice");
      if (other == TextFormat::parquet) fail("data", "standard input: Parquet is read from regular files only");
      standard_input_seen = true;
      sources.push_back({path, other.value_or(TextFormat::plain), 0});
      continue;
    }
    if (!fs::exists(path)) fail("data", "{}: no such file or folder", input);
    if (!fs::is_directory(path)) {
      const uint64_t bytes = fs::is_regular_file(path) ? fs::file_size(path) : 0;
      sources.push_back({path, format_of_named(path, other, code), bytes});
      continue;
    }
    FolderSearch search(code);
    try {
      search.visit(path);
    } catch (const fs::filesystem_error& e) {
      fail("data", "{}: {}", e.path1().string(), e.code().message());
    }
    if (search.found.empty()) {
      fail("data", "{}: expected .txt, .md, .rst, .jsonl, .pod (also .gz, .zst) or .parquet files{}, found none", input,
           code ? " or source code" : " (with --code also source code)");
    }
    std::vector<std::string> left_out;
    for (const auto& [ending, count] : search.left_out) left_out.push_back(fmt::format("{} {}", count, ending));
    if (!left_out.empty()) log::info("{}: skipped files: {}", input, fmt::join(left_out, ", "));
    std::sort(search.found.begin(), search.found.end(),
              [](const Source& a, const Source& b) { return a.path.native() < b.path.native(); });
    sources.insert(sources.end(), search.found.begin(), search.found.end());
  }
  if (sources.empty()) fail("data", "no input: specify files, folders or - for standard input");
  return sources;
}

}  // namespace lazy
