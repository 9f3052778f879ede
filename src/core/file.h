// Files: whole reads, memory maps, and writes that are complete or absent, never half there.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace lazy {

std::string read_file(const std::filesystem::path& path);

// Writes PATH.tmp-PID, syncs it, renames it over PATH and syncs the folder. On any failure (a full disk) the
// temporary is removed, PATH keeps its former content, and RunError says what the system said.
void write_file_atomic(const std::filesystem::path& path, std::string_view content);

// The same for content too large to hold at once: `produce` appends through the given writer.
class FileWriter {
 public:
  explicit FileWriter(
      const std::filesystem::path& path);  // path is written as it is; see write_file_atomic for renaming
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;
  void write(const void* data, size_t size);
  void write(std::string_view data) { write(data.data(), data.size()); }
  void write_at(uint64_t offset, const void* data, size_t size);  // overwrite earlier bytes, e.g. a header
  uint64_t size() const { return size_; }
  void close();  // flush, fsync, close; errors throw. The destructor closes without syncing.

 private:
  void flush();
  std::filesystem::path path_;
  int fd_ = -1;
  uint64_t size_ = 0;
  std::string buffer_;
};
void write_file_atomic(const std::filesystem::path& path, const std::function<void(FileWriter&)>& produce);

void sync_directory(const std::filesystem::path& directory);
// Renames a finished folder into place and syncs the parent: the last step of a checkpoint.
void publish_directory(const std::filesystem::path& temporary, const std::filesystem::path& final_name);

// Read-only memory map of a whole file.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  std::string_view view() const { return {reinterpret_cast<const char*>(data_), size_}; }
  const std::filesystem::path& path() const { return path_; }
  // The map is read here and there: a page that is touched brings no neighbours from the disk but those asked for.
  void expect_scattered_reads() const;
  void read_ahead(size_t offset, size_t size) const;
  void forget(size_t offset, size_t size) const;  // its pages need not stay in memory

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// 64-bit XXH3 checksum.
uint64_t checksum(const void* data, size_t size);
inline uint64_t checksum(std::string_view data) { return checksum(data.data(), data.size()); }

}  // namespace lazy
