// Files: whole reads, memory maps, and atomic writes (temporary file, fsync, rename).
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace lazy {

std::string read_file(const std::filesystem::path& path);

// Writes PATH.tmp-XXXXXX (a random name), syncs it, renames it over PATH and syncs the folder. If PATH is a link, the
// file that it points to is replaced. A device or pipe (/dev/stdout) is written as it is. On failure (a full disk) the
// temporary file is removed, PATH keeps its former content, and RunError carries the system's message.
void write_file_atomic(const std::filesystem::path& path, std::string_view content);

// Buffered writer. It writes to `path` itself; write_file_atomic() adds the temporary name and the rename.
class FileWriter {
 public:
  explicit FileWriter(const std::filesystem::path& path);
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
// For content too large to hold at once: `produce` appends to the writer.
void write_file_atomic(const std::filesystem::path& path, const std::function<void(FileWriter&)>& produce);

// Makes renames in the directory durable. File systems that cannot (CIFS, FUSE: EINVAL, ENOTSUP, ENOSYS) get one
// warning per process; other errors are RunError.
void sync_directory(const std::filesystem::path& directory);
// What a path stands for: the target if it is a link, even if that does not exist; otherwise the path itself.
std::filesystem::path resolve_link(const std::filesystem::path& path);
unsigned file_mode_mask();  // the process's umask
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
  // Access hints (madvise). expect_scattered_reads() turns off the kernel's own read-ahead for the map.
  void expect_scattered_reads() const;
  void read_ahead(size_t offset, size_t size) const;
  void forget(size_t offset, size_t size) const;  // drops the pages from memory; they are read again on access

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace lazy
