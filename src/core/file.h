// Files: reading whole files, memory maps, and atomic writes (temporary file, fsync, rename).
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace lazy {

std::string read_file(const std::filesystem::path& path);

// Writes PATH.tmp-XXXXXX (a random name), syncs it, renames it to PATH and syncs the folder. If PATH is a symbolic
// link, its target is replaced. A device or pipe (/dev/stdout) is written directly. On failure, for example on a full
// disk, the temporary file is removed, PATH keeps its old content, and RunError contains the system error.
void write_file_atomic(const std::filesystem::path& path, std::string_view content);

// Buffered writer. It writes directly to `path`; write_file_atomic() adds the temporary name and the rename.
class FileWriter {
 public:
  explicit FileWriter(const std::filesystem::path& path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;
  void write(const void* data, size_t size);
  void write(std::string_view data) { write(data.data(), data.size()); }
  void write_at(uint64_t offset, const void* data, size_t size);  // overwrites earlier bytes, for example a header
  uint64_t size() const { return size_; }
  void close();  // flush, fsync and close; throws on errors. The destructor closes without syncing.

 private:
  void flush();
  std::filesystem::path path_;
  int fd_ = -1;
  uint64_t size_ = 0;
  std::string buffer_;
};
// Overload for content that is too large for memory: `produce` writes the content to the FileWriter.
void write_file_atomic(const std::filesystem::path& path, const std::function<void(FileWriter&)>& produce);

// Syncs the directory (fsync), so that renames in it survive a power failure. If the file system does not support this
// (CIFS, FUSE: EINVAL, ENOTSUP, ENOSYS), one warning per process is logged. Other errors throw RunError.
void sync_directory(const std::filesystem::path& directory);
// Returns the target if the path is a symbolic link, even if the target does not exist. Otherwise returns the path.
std::filesystem::path resolve_link(const std::filesystem::path& path);
unsigned file_mode_mask();  // the umask of the process
// Renames a finished folder to its final name and syncs the parent folder. This is the last step of writing a
// checkpoint.
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
  // Access hints (madvise). expect_scattered_reads() disables the read-ahead of the kernel for this map.
  void expect_scattered_reads() const;
  void read_ahead(size_t offset, size_t size) const;
  // Drops the bytes [offset, offset + size) from memory. They are read from disk again when they are accessed.
  void forget(size_t offset, size_t size) const;

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace lazy
