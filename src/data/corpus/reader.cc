#include <algorithm>

#include "data/corpus/documents.h"
#include "data/corpus/parquet.h"

namespace lazy {
namespace {

constexpr size_t kBatch = 1 << 20;

bool is_lines(const Source& source) {
  return source.format == TextFormat::json_lines || source.format == TextFormat::parquet;
}

}  // namespace

DocumentReader::DocumentReader(std::vector<Source> sources, DocumentOptions options)
    : sources_(std::move(sources)), options_(std::move(options)) {}

bool DocumentReader::open_next() {
  if (stream_) {
    consumed_before_ += stream_->consumed();
    skipped_before_ += stream_->skipped();
  }
  stream_.reset();
  if (index_ == sources_.size()) return false;
  const Source& source = sources_[index_++];
  stream_ =
      source.format == TextFormat::parquet ? open_parquet(source.path, options_.text_field) : open_stream(source.path);
  buffer_.clear();
  scanned_ = boundary_ = 0;
  blank_lines_ = 0;
  line_ = 1;
  return true;
}

// How many bytes of the buffer are whole documents. Looks at each line once.
size_t DocumentReader::whole_documents() {
  const Source& source = sources_[index_ - 1];
  if (is_lines(source)) {
    const size_t end = buffer_.rfind('\n');
    return end == std::string::npos ? 0 : end + 1;
  }
  if (source.format == TextFormat::pod || options_.split_blank == 0) return 0;
  size_t end;
  while ((end = buffer_.find('\n', scanned_)) != std::string::npos) {
    const bool blank = std::all_of(buffer_.begin() + scanned_, buffer_.begin() + end,
                                   [](char c) { return c == ' ' || c == '\t' || c == '\r'; });
    if (!blank && blank_lines_ >= options_.split_blank) boundary_ = scanned_;
    blank_lines_ = blank ? blank_lines_ + 1 : 0;
    scanned_ = end + 1;
  }
  return boundary_;
}

bool DocumentReader::next(RawBatch& batch) {
  while (stream_ || open_next()) {
    const bool more = stream_->read(buffer_);
    if (more && buffer_.size() < kBatch) continue;
    const size_t size = more ? whole_documents() : buffer_.size();
    if (more && size == 0) continue;
    batch.source = &sources_[index_ - 1];
    batch.line = line_;
    batch.text = buffer_.substr(0, size);
    batch.consumed = consumed_before_ + stream_->consumed();
    batch.skipped = skipped_before_ + stream_->skipped();
    if (is_lines(*batch.source)) line_ += std::count(batch.text.begin(), batch.text.end(), '\n');
    buffer_.erase(0, size);
    scanned_ -= std::min(scanned_, size);
    boundary_ = 0;
    if (!more) {
      open_next();
      if (batch.text.empty() && batch.skipped == skipped_reported_) continue;
    }
    skipped_reported_ = batch.skipped;
    return true;
  }
  return false;
}

}  // namespace lazy
