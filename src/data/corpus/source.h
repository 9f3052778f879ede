// Text inputs: files, folders and standard input; plain, gzip, zstd or Parquet.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
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
// endings in any case: .txt .text .md .rst, .jsonl .ndjson .jsonlines, .pod, these with .gz or .zst, .parquet and, with
// `code`, those of programs. Hidden files and README, LICENSE, NOTICE and CITATION are left out, links are followed,
// and the number of files left out is logged by ending. `other`: the format of standard input and of named files with
// another ending; nullopt: text for standard input, an error for files, but .json with an object on each line. Error
// when a name does not exist or a folder has no such file.
std::vector<Source> find_sources(const std::vector<std::string>& inputs, std::optional<TextFormat> other,
                                 bool code = false);

bool is_code(const std::filesystem::path& name);  // by its extension

// The text of a file in UTF-8, in pieces. The first bytes decide: gzip and zstd are decompressed; UTF-16 and UTF-32
// with a byte order mark are converted; other archives, Parquet and files with NUL bytes are Error.
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
