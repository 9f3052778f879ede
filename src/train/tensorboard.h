// TensorBoard event files: scalars over steps, written as TFRecord-framed `tensorflow.Event` messages without a
// Protocol Buffers library. Format: tensorflow/core/util/event.proto and lib/io/record_writer.h.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lazy::train {

// An append-only file. Each record is written by one system call, so records never interleave, and a partial record on
// a full disk is removed again.
class AppendFile {
 public:
  // Creates the file if absent. Throws RunError with the system error.
  explicit AppendFile(const std::filesystem::path& path);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  void append(std::string_view record);  // throws RunError, for example on a full disk
  void sync();                           // fsync

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

// CRC-32C (Castagnoli, RFC 3720), the checksum of TFRecord files. The crc32 of zlib uses a different polynomial.
uint32_t crc32c(std::string_view data);
// Returns the CRC in the form that TFRecord stores: rotated, and with a constant added.
uint32_t masked_crc32c(std::string_view data);

class EventWriter {
 public:
  // Creates a new events.out.tfevents.* file in `directory`, which is created if absent. If `purge_from` > 0, the file
  // starts with a session-start event, and TensorBoard discards the events of earlier files from that step on. This is
  // used by resumed runs.
  EventWriter(const std::filesystem::path& directory, double wall_time, int64_t purge_from = 0);
  // Writes one event with all scalars of a step. wall_time: seconds since 1970.
  void scalars(int64_t step, double wall_time, const std::vector<std::pair<std::string, double>>& values);
  void sync() { file_.sync(); }
  const std::filesystem::path& path() const { return path_; }

 private:
  void record(const std::string& event);
  std::filesystem::path path_;
  AppendFile file_;
};

}  // namespace lazy::train
