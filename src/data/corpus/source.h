// Where text comes from: files, folders and standard input, plain or compressed.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
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

// Expands files and folders (recursively, in byte order of their paths) to sources. In folders only the known endings
// are taken: .txt .text .md .jsonl .pod, these with .gz or .zst, and .parquet. Standard input, and a file that is named
// itself and ends otherwise, have the format `other`. Error when a name does not exist or a folder holds nothing to
// read.
std::vector<Source> find_sources(const std::vector<std::string>& inputs, TextFormat other);

// Decompressed bytes of a file, in pieces. .gz and .zst are recognized by their first bytes.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Appends up to about 1 MiB to `out`; false at the end. A truncated or damaged archive throws Error naming it.
  virtual bool read(std::string& out) = 0;
  virtual uint64_t consumed() const = 0;          // bytes of the file read so far
  virtual uint64_t skipped() const { return 0; }  // records without a text, left out so far
};
std::unique_ptr<ByteStream> open_stream(const std::filesystem::path& path);

}  // namespace lazy
