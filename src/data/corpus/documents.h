// From sources to documents: cutting streams apart, taking the text field of JSON lines, POD to prose, valid UTF-8.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/corpus/source.h"

namespace lazy {

struct DocumentOptions {
  std::string text_field = "text";  // of JSON lines; column of Parquet files
  int64_t split_blank = 0;          // plain text: this many blank lines or more part documents; 0: a file is one
  int64_t max_bytes = 0;            // documents longer than this are cut, at a blank line where there is one; 0: never
  bool pod_code = false;            // keep POD's indented code
};

// A stretch of one source as it was read: whole documents, not yet looked at.
struct RawBatch {
  const Source* source = nullptr;
  std::string text;
  int64_t line = 1;       // of the source, where the text begins
  uint64_t consumed = 0;  // bytes of all sources read so far, for the progress bar
  uint64_t skipped = 0;   // records of all sources without a text, left out so far
};

struct DocumentBatch {
  std::vector<std::string> documents;  // valid UTF-8, none empty
  int64_t replaced = 0;                // U+FFFD put in place of invalid bytes
  uint64_t consumed = 0, skipped = 0;  // as in RawBatch
};

// Reads sources one after the other in batches of about 1 MiB; for one thread.
class DocumentReader {
 public:
  DocumentReader(std::vector<Source> sources, DocumentOptions options);
  bool next(RawBatch& batch);  // false at the end
  const DocumentOptions& options() const { return options_; }

 private:
  bool open_next();
  size_t whole_documents();
  std::vector<Source> sources_;
  DocumentOptions options_;
  size_t index_ = 0;  // of the next source
  std::unique_ptr<ByteStream> stream_;
  std::string buffer_;
  size_t scanned_ = 0, boundary_ = 0;  // of the buffer: lines looked at, and where the last whole document ends
  int64_t blank_lines_ = 0;            // directly before `scanned_`
  int64_t line_ = 1;                   // where the buffer begins
  uint64_t consumed_before_ = 0, skipped_before_ = 0, skipped_reported_ = 0;
};

// Error names the file, the line and the field. Thread-safe.
DocumentBatch extract_documents(RawBatch&& batch, const DocumentOptions& options);

}  // namespace lazy
