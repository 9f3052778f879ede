// From sources to documents: splits streams, takes the text field of JSON lines, converts POD, repairs UTF-8.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/corpus/source.h"

namespace lazy {

struct DocumentOptions {
  std::string text_field = "text";  // of JSON lines; column of Parquet files
  int64_t split_blank = 0;          // plain text: so many blank lines separate documents; 0: a file is one document
  int64_t max_bytes = 0;            // longer documents are cut, at a blank line if possible; 0: never
  bool pod_code = false;            // keep verbatim (indented) paragraphs of POD
  bool strict = false;              // a line without a text is an error; otherwise it is left out and counted
};

// Consecutive whole documents of one source, unparsed.
struct RawBatch {
  const Source* source = nullptr;
  std::string text;
  int64_t line = 1;       // line number in the source of the first line
  uint64_t consumed = 0;  // bytes of all sources read so far, for the progress bar
  uint64_t skipped = 0;   // records of all sources without a text so far
};

struct DocumentBatch {
  std::vector<std::string> documents;  // valid UTF-8, none empty
  int64_t replaced = 0;                // U+FFFD written for invalid bytes
  int64_t left_out = 0;                // lines without a text
  std::string first_left_out;          // why the first of them has none, with file, line and field
  uint64_t consumed = 0, skipped = 0;  // as in RawBatch
};

// Reads the sources in order, in batches of about 1 MiB. Not thread-safe.
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
  // In the buffer: the end of the scanned lines, of the bytes without a further line end, of the last whole document.
  size_t scanned_ = 0, searched_ = 0, boundary_ = 0;
  int64_t blank_lines_ = 0;  // directly before `scanned_`
  int64_t line_ = 1;         // line number of the beginning of the buffer
  uint64_t consumed_before_ = 0, skipped_before_ = 0, skipped_reported_ = 0;
};

// JSON lines are read as Python reads them (core/python_json.h). Errors name the file, the line and the field.
// Thread-safe.
DocumentBatch extract_documents(RawBatch&& batch, const DocumentOptions& options);

// The prose of Perl's "plain old documentation": one line a paragraph, separated by blank lines. Headings and item
// texts are kept as paragraphs; formatting codes (B<>, C<< >>, L<>, E<>), =begin/=for blocks of other formats and Perl
// code outside POD are dropped. `keep_code` keeps verbatim (indented) paragraphs.
std::string pod_to_text(std::string_view pod, bool keep_code);

}  // namespace lazy
