
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "train/tensorboard.h"

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
      // Remove the partial record, because readers cannot parse data that follows a partial record.
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

namespace fs = std::filesystem;

namespace {

static_assert(std::endian::native == std::endian::little, "event files are little-endian");

template <typename T>
void append_raw(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

void append_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

// Protocol Buffers: a field is (number << 3 | wire type) and its payload.
enum WireType { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };

void append_key(std::string& out, uint32_t field, WireType type) { append_varint(out, field << 3 | type); }

void append_bytes(std::string& out, uint32_t field, const std::string& bytes) {
  append_key(out, field, kLengthDelimited);
  append_varint(out, bytes.size());
  out += bytes;
}

// message Event { double wall_time = 1; int64 step = 2; oneof { string file_version = 3; Summary summary = 5;
//                 SessionLog session_log = 7; } }
std::string event_head(double wall_time, int64_t step) {
  std::string event;
  append_key(event, 1, kFixed64);
  append_raw(event, wall_time);
  append_key(event, 2, kVarint);
  append_varint(event, static_cast<uint64_t>(step));
  return event;
}

fs::path new_file_name(const fs::path& directory, double wall_time) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) fail_run("tensorboard", "{}: {}", directory.string(), error.message());
  char host[256] = "localhost";
  ::gethostname(host, sizeof host - 1);
  fs::path path;
  for (int i = 0; path.empty() || fs::exists(path); ++i) {
    path = directory /
           fmt::format("events.out.tfevents.{:010d}.{}.{}.{}", static_cast<int64_t>(wall_time), host, ::getpid(), i);
  }
  return path;
}

}  // namespace

uint32_t crc32c(std::string_view data) {
  static constexpr auto kTable = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) ? 0x82F63B78u : 0u);
      table[i] = value;
    }
    return table;
  }();
  uint32_t crc = 0xFFFFFFFFu;
  for (const char c : data) crc = kTable[(crc ^ static_cast<uint8_t>(c)) & 0xFF] ^ (crc >> 8);
  return ~crc;
}

// A CRC of data that contains CRCs is weak, so TFRecord stores it rotated and with an added offset.
uint32_t masked_crc32c(std::string_view data) {
  const uint32_t crc = crc32c(data);
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

EventWriter::EventWriter(const fs::path& directory, double wall_time, int64_t purge_from)
    : path_(new_file_name(directory, wall_time)), file_(path_) {
  std::string version = event_head(wall_time, 0);
  append_bytes(version, 3, "brain.Event:2");
  record(version);
  if (purge_from > 0) {
    std::string session;  // message SessionLog { SessionStatus status = 1; } with the status START, whose value is 1
    append_key(session, 1, kVarint);
    append_varint(session, 1);
    std::string event = event_head(wall_time, purge_from);
    append_bytes(event, 7, session);
    record(event);
  }
}

void EventWriter::scalars(int64_t step, double wall_time, const std::vector<std::pair<std::string, double>>& values) {
  std::string summary;  // message Summary { repeated Value value = 1; }
  for (const auto& [tag, number] : values) {
    std::string value;  // message Value { string tag = 1; float simple_value = 2; }
    append_bytes(value, 1, tag);
    append_key(value, 2, kFixed32);
    append_raw(value, static_cast<float>(number));
    append_bytes(summary, 1, value);
  }
  std::string event = event_head(wall_time, step);
  append_bytes(event, 5, summary);
  record(event);
}

void EventWriter::record(const std::string& event) {
  std::string framed;
  append_raw(framed, static_cast<uint64_t>(event.size()));
  append_raw(framed, masked_crc32c(framed));
  framed += event;
  append_raw(framed, masked_crc32c(event));
  file_.append(framed);
}

}  // namespace lazy::train
