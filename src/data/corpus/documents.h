// Converts text sources to documents: splits streams, extracts the text field of JSON lines, converts POD (Perl's
// documentation format) to prose and repairs invalid UTF-8.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/corpus/source.h"

namespace lazy {

struct DocumentOptions {
  std::string text_field = "text";  // field of JSON lines or column of Parquet files
  int64_t split_blank = 0;  // Plain text: number of blank lines that separate documents. 0: each file is one document.
  int64_t max_bytes = 0;    // longer documents are cut, at a blank line if possible; 0: never
  bool pod_code = false;    // keep the indented (code) paragraphs of POD, Perl's documentation format
  // Reaction to JSON lines in which text_field is missing or not a string. true: error; false: they are skipped and
  // counted.
  bool strict = false;
};

// Consecutive complete documents of one source, not yet parsed.
struct RawBatch {
  const Source* source = nullptr;
  std::string text;
  int64_t line = 1;       // line number, in the source, of the first line of `text`
  uint64_t consumed = 0;  // total number of bytes read from all sources so far, for the progress bar
  uint64_t skipped = 0;   // total number of Parquet rows without a value in all sources so far
};

struct DocumentBatch {
  std::vector<std::string> documents;  // valid UTF-8; no document is empty
  int64_t replaced = 0;                // number of U+FFFD characters written for invalid bytes
  int64_t left_out = 0;                // number of skipped lines (DocumentOptions::strict)
  std::string first_left_out;          // reason for the first skipped line, with file, line and field
  uint64_t consumed = 0, skipped = 0;  // see RawBatch
};

// Reads the sources in order, in batches of about 1 MiB. Not thread-safe.
class DocumentReader {
 public:
  DocumentReader(std::vector<Source> sources, DocumentOptions options);
  bool next(RawBatch& batch);  // returns false at the end
  const DocumentOptions& options() const { return options_; }

 private:
  bool open_next();
  size_t whole_documents();
  std::vector<Source> sources_;
  DocumentOptions options_;
  size_t index_ = 0;  // index of the next source to read
  std::unique_ptr<ByteStream> stream_;
  std::string buffer_;
  // Positions in the buffer. scanned_: end of the lines that have been scanned for blank lines. searched_: end of the
  // bytes that have been searched for a line end. boundary_: end of the last complete document.
  size_t scanned_ = 0, searched_ = 0, boundary_ = 0;
  int64_t blank_lines_ = 0;  // number of blank lines directly before `scanned_`
  int64_t line_ = 1;         // line number at the start of the buffer
  uint64_t consumed_before_ = 0, skipped_before_ = 0, skipped_reported_ = 0;
};

// Parses JSON lines in the same way as Python (core/python_json.h). Errors contain the file, the line and the field.
// Thread-safe.
DocumentBatch extract_documents(RawBatch&& batch, const DocumentOptions& options);

// Extracts the prose of Perl's "plain old documentation": one line per paragraph, separated by blank lines. Headings
// and item texts are kept as paragraphs. Formatting codes (B<>, C<< >>, L<>, E<>), =begin/=for blocks for other formats
// and Perl code outside of POD are removed. `keep_code` keeps verbatim (indented) paragraphs.
std::string pod_to_text(std::string_view pod, bool keep_code);

}  // namespace lazy
