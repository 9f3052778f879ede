// Text inputs: files, folders and standard input in plain, gzip, zstd or Parquet format.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lazy {

enum class TextFormat { plain, json_lines, pod, parquet };

struct Source {
  std::filesystem::path path;  // "-" is standard input
  TextFormat format = TextFormat::plain;
  uint64_t bytes = 0;  // size on disk, for the progress bar; 0: unknown
  std::string name() const { return path == "-" ? "standard input" : path.string(); }
};

// Expands files and folders (recursively, in byte order of their paths) to sources. Files in folders are used if they
// have a known extension in any case: .txt .text .md .rst, .jsonl .ndjson .jsonlines and .pod, each also with .gz or
// .zst appended; .parquet; and, if `code` is set, the extensions of source code. Hidden files and README, LICENSE,
// NOTICE and CITATION are skipped, links are followed, and the number of skipped files is logged by extension. `other`
// is the format of standard input and of named files with another extension. If `other` is nullopt, standard input is
// read as text and such files are an error, except for .json files with an object on each line. Throws Error if a name
// does not exist or a folder contains no matching file.
std::vector<Source> find_sources(const std::vector<std::string>& inputs, std::optional<TextFormat> other,
                                 bool code = false);

// Properties of text files that can be determined or estimated without reading the files.
struct TextFacts {
  int64_t bytes = 0, code_bytes = 0;     // bytes of text; estimated for compressed files and Parquet
  bool exact = true;                     // false if `bytes` is estimated or unknown
  int64_t documents = 0;                 // estimate: a JSON lines or Parquet file counts as 2^20 documents
  std::map<std::string, int64_t> files;  // number of files by extension
};
TextFacts text_facts(const std::vector<Source>& sources);

bool is_code(const std::filesystem::path& name);  // decided by the file name extension

// The text of a file in UTF-8, in parts. The format is detected from the first bytes: gzip and zstd are decompressed,
// and UTF-16 and UTF-32 with a byte order mark are converted. All other archives, Parquet files and texts with NUL
// bytes cause an Error: in open_stream() if this is visible in the first bytes, otherwise in read().
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Appends up to about 1 MiB to `out` and returns false at the end. Throws Error with the file name for a truncated or
  // damaged archive.
  virtual bool read(std::string& out) = 0;
  virtual uint64_t consumed() const = 0;          // number of bytes of the file read so far
  virtual uint64_t skipped() const { return 0; }  // number of Parquet rows without a value so far
};
std::unique_ptr<ByteStream> open_stream(const std::filesystem::path& path);

// Returns the whole text of a file, read with open_stream(), without a byte order mark. Throws Error with the file and
// the position in the (decompressed) text for bytes that are not UTF-8, like open() in Python.
std::string read_text(const std::filesystem::path& path);

// Opens a Parquet file as a stream of JSON lines. Each line is an object whose only field is `column` (a dotted path
// selects a struct member). Rows without a value are skipped and counted. If `column` is kAllColumns, each line
// contains all columns of a row. A Python process (core/python_child.h) with pyarrow reads the file and holds a part of
// a row group in memory. Throws Error if Python, pyarrow or the column is missing or if the file is damaged.
inline constexpr const char* kAllColumns = "*";
std::unique_ptr<ByteStream> open_parquet(const std::filesystem::path& path, const std::string& column);

}  // namespace lazy
