// Text inputs: files, folders and standard input; plain, gzip, zstd or Parquet.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace lazy {

enum class TextFormat { plain, json_lines, pod, parquet };

struct Source {
  std::filesystem::path path;  // "-" is standard input
  TextFormat format = TextFormat::plain;
  uint64_t bytes = 0;  // on disk, for the progress bar; 0 when unknown
  std::string name() const { return path == "-" ? "standard input" : path.string(); }
};

// Expands files and folders (recursively, in byte order of their paths) to sources. Folders contribute files with known
// extensions: .txt .text .md .jsonl .pod, these with .gz or .zst, .parquet and, with `code`, those of programs.
// Standard input, and named files with another extension, have the format `other`. Error when a name does not exist or
// a folder has no such file.
std::vector<Source> find_sources(const std::vector<std::string>& inputs, TextFormat other, bool code = false);

bool is_code(const std::filesystem::path& name);  // by its extension

// Decompressed bytes of a file, in pieces. .gz and .zst are recognized by their first bytes.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Appends up to about 1 MiB to `out`; false at the end. A truncated or damaged archive throws Error naming it.
  virtual bool read(std::string& out) = 0;
  virtual uint64_t consumed() const = 0;          // bytes of the file read so far
  virtual uint64_t skipped() const { return 0; }  // records without a text so far
};
std::unique_ptr<ByteStream> open_stream(const std::filesystem::path& path);

// The rows of `column` (a dotted path reaches into structs) as JSON lines with that one field; rows without a value are
// skipped and counted. kAllColumns gives every row whole. A Python process with pyarrow reads the file ($LAZY_PYTHON,
// else python3) and holds a part of a row group in memory. Error when Python, pyarrow or the column is missing, or the
// file is damaged.
inline constexpr const char* kAllColumns = "*";
std::unique_ptr<ByteStream> open_parquet(const std::filesystem::path& path, const std::string& column);

}  // namespace lazy
