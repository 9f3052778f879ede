#include "data/corpus/documents.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/python_json.h"
#include "core/text.h"
#include "data/corpus/pipeline.h"

namespace lazy {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
constexpr size_t kBatch = 1 << 20;

bool is_lines(const Source& source) {
  return source.format == TextFormat::json_lines || source.format == TextFormat::parquet;
}

int64_t count(std::string_view text, std::string_view what) {
  int64_t n = 0;
  for (size_t at = 0; (at = text.find(what, at)) != std::string_view::npos; at += what.size()) ++n;
  return n;
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

// Callbacks of the JSON parser (SAX) that read one field of an object. A long text is moved instead of copied, and the
// values of all other fields are discarded. If the field occurs several times, the last one is used, as in Python.
class FieldReader final : public nlohmann::json_sax<Json> {
 public:
  explicit FieldReader(const std::string& field) : field_(field) {}

  bool null() override { return value("null"); }
  bool boolean(bool) override { return value("boolean"); }
  bool number_integer(number_integer_t) override { return value("number"); }
  bool number_unsigned(number_unsigned_t) override { return value("number"); }
  bool number_float(number_float_t, const string_t&) override { return value("number"); }
  bool string(string_t& text) override {
    if (depth_ == 1 && here_) text_ = std::move(text);
    return value("string");
  }
  bool binary(binary_t&) override { return value("binary"); }
  bool start_object(std::size_t) override {
    value("object");
    ++depth_;
    return true;
  }
  bool key(string_t& name) override {
    if (depth_ != 1) return true;
    here_ = name == field_;
    if (!here_) names_.insert(name);
    return true;
  }
  bool end_object() override { return end(); }
  bool start_array(std::size_t) override {
    value("array");
    ++depth_;
    return true;
  }
  bool end_array() override { return end(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

  // Reads the field from a JSON value that has already been parsed. The result is the same as after the parser
  // callbacks.
  void take(Json& json) {
    line_type_ = json.type_name();
    if (!json.is_object()) return;
    for (auto& [name, value] : json.items()) {
      if (name != field_) {
        names_.insert(name);
        continue;
      }
      field_type_ = value.type_name();
      if (value.is_string()) text_ = std::move(value.get_ref<std::string&>());
    }
  }

  // Returns whether the line is an object in which the requested field is a string.
  bool is_text() const {
    return std::string_view(line_type_) == "object" && field_type_ && std::string_view(field_type_) == "string";
  }
  const char* line_type() const { return line_type_; }    // JSON type of the line; "object" if the line is valid
  const char* field_type() const { return field_type_; }  // JSON type of the field; null if the field is missing
  const std::set<std::string>& other_names() const { return names_; }
  std::string& text() { return text_; }

 private:
  bool value(const char* type) {
    if (depth_ == 0) line_type_ = type;
    if (depth_ == 1 && here_) field_type_ = type;
    return true;
  }
  bool end() {
    --depth_;
    return true;
  }

  const std::string& field_;
  int depth_ = 0;
  bool here_ = false;  // whether the value being parsed belongs to `field_`
  const char *line_type_ = "null", *field_type_ = nullptr;
  std::set<std::string> names_;
  std::string text_;
};

// Decodes the content of a JSON string literal without its quotes. The literal is decoded in parts, in parallel.
// Returns nullopt if a part is invalid.
std::optional<std::string> decode_literal(std::string_view literal) {
  constexpr size_t kPart = 4 << 20, kEscape = 12;  // kEscape: number of bytes of the longest escape, a surrogate pair
  std::string out;
  bool valid = true;
  ordered_pipeline<std::string_view, Json>(
      [&](std::string_view& part) {
        size_t size = std::min(kPart, literal.size());
        // Extend the part until its end is neither inside an escape sequence nor inside a UTF-8 character.
        while (size < literal.size() &&
               ((static_cast<unsigned char>(literal[size]) & 0xC0) == 0x80 ||
                literal.substr(size - kEscape, kEscape).find('\\') != std::string_view::npos)) {
          ++size;
        }
        part = literal.substr(0, size);
        literal.remove_prefix(size);
        return size > 0;
      },
      [](std::string_view part) { return part.size(); },
      [](std::string_view part) { return Json::parse('"' + std::string(part) + '"', nullptr, false); },
      [&](Json&& part) {
        valid = valid && part.is_string();
        if (valid) out += part.get_ref<const std::string&>();
      },
      [] {}, static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
  return valid ? std::optional(std::move(out)) : std::nullopt;
}

// Handles a line whose field is one very long text. For such a line, the parser is several times slower than for many
// short lines with the same number of bytes. The long literal is therefore decoded separately and replaced by a short
// literal before the line is parsed. Returns nullopt if the line is not of this kind.
std::optional<std::string> long_text_of(std::string_view line, const std::string& field) {
  constexpr size_t kLong = 16 << 20;
  constexpr std::string_view kMarker = "lazy-long-text";
  if (line.size() < kLong) return std::nullopt;
  std::string_view literal;
  for (size_t at = 0; (at = line.find('"', at)) != std::string_view::npos;) {
    const size_t begin = ++at;
    for (;; ++at) {
      at = line.find('"', at);
      if (at == std::string_view::npos) return std::nullopt;
      size_t backslashes = 0;
      while (line[at - 1 - backslashes] == '\\') ++backslashes;
      if (backslashes % 2 == 0) break;
    }
    if (at - begin >= kLong) {
      literal = line.substr(begin, at - begin);
      break;
    }
    ++at;
  }
  if (literal.empty()) return std::nullopt;
  const auto begin = static_cast<size_t>(literal.data() - line.data());
  const std::string_view before = line.substr(0, begin), after = line.substr(begin + literal.size());
  if (after.size() >= kLong || before.find(kMarker) != std::string_view::npos ||
      after.find(kMarker) != std::string_view::npos) {
    return std::nullopt;
  }
  const std::string reduced = std::string(before) + std::string(kMarker) + std::string(after);
  FieldReader reader(field);
  if (!Json::sax_parse(reduced, &reader) || reader.text() != kMarker || !reader.is_text()) return std::nullopt;
  return decode_literal(literal);
}

// Returns the text field of one line.
std::string text_of(std::string_view line, const RawBatch& batch, int64_t number, const std::string& field) {
  if (std::optional<std::string> text = long_text_of(line, field)) return std::move(*text);
  std::optional<FieldReader> parsed(field);
  bool valid = Json::sax_parse(line, &*parsed);
  if (!valid) {  // Python's json module also writes values that are not valid JSON, such as NaN. They are accepted too.
    Json json = parse_python_json(line);
    valid = !json.is_discarded();
    parsed.emplace(field).take(json);
  }
  FieldReader& reader = *parsed;
  if (valid && reader.is_text()) return std::move(reader.text());
  const std::string where = fmt::format("{}:{}", batch.source->name(), number);
  if (!valid) {
    fail("data", "{}: expected a JSON object, found \"{}\"", where,
         line.substr(0, complete_utf8_prefix(line.substr(0, 40))));
  }
  if (std::string_view(reader.line_type()) != "object") {
    fail("data", "{}: expected a JSON object, found {}", where, reader.line_type());
  }
  if (!reader.field_type()) {
    fail("data", "{}: field \"{}\" is missing; the line has {}", where, field, fmt::join(reader.other_names(), ", "));
  }
  fail("data", "{}: field \"{}\": expected a string, found {}", where, field, reader.field_type());
}

void split_lines(const RawBatch& batch, const DocumentOptions& options, DocumentBatch& result) {
  int64_t number = batch.line;
  for (size_t at = 0; at < batch.text.size(); ++number) {
    const size_t end = std::min(batch.text.find('\n', at), batch.text.size());
    const std::string_view line(batch.text.data() + at, end - at);
    if (!is_blank(line)) {
      try {
        result.documents.push_back(text_of(line, batch, number, options.text_field));
      } catch (const Error& error) {
        if (options.strict) throw;
        if (result.left_out++ == 0) result.first_left_out = error.what();
      }
    }
    at = end + 1;
  }
}

// Splits a text into documents at runs of at least `blank_lines` blank lines, and appends them to `documents`. The
// blank lines at which the text is split are removed.
void split_at_blank(const std::string& text, int64_t blank_lines, std::vector<std::string>& documents) {
  size_t begin = 0, end = 0, at = 0;  // bounds of the current document, without trailing blank lines
  int64_t blank = 0;
  while (at < text.size()) {
    const size_t next = std::min(text.find('\n', at), text.size() - 1) + 1;
    if (is_blank(std::string_view(text).substr(at, next - at - (text[next - 1] == '\n')))) {
      ++blank;
    } else {
      if (blank >= blank_lines) {
        documents.push_back(text.substr(begin, end - begin));
        begin = at;
      }
      blank = 0;
      end = next;
    }
    at = next;
  }
  documents.push_back(text.substr(begin, end - begin));
}

// Returns the position at which to cut a text, at most `limit` bytes from its start. Prefers the end of a blank line,
// then the end of a line, then the end of a word, then the end of a character.
size_t cut_before(std::string_view text, size_t limit) {
  for (const std::string_view separator : {"\n\n", "\n", " "}) {
    if (separator.size() > limit) continue;
    const size_t at = text.rfind(separator, limit - separator.size());
    if (at != std::string_view::npos && at + separator.size() > limit / 2) return at + separator.size();
  }
  const auto inside = [&](size_t at) { return (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80; };
  size_t at = limit;
  while (at > 0 && inside(at)) --at;
  if (at == 0) {  // the first character is longer than `limit`; cut after it
    do ++at;
    while (at < text.size() && inside(at));
  }
  return at;
}

void cut_long(std::vector<std::string>& documents, size_t limit) {
  std::vector<std::string> cut;
  for (std::string& document : documents) {
    std::string_view rest = document;
    while (rest.size() > limit) {
      const size_t at = cut_before(rest, limit);
      cut.emplace_back(rest.substr(0, at));
      rest.remove_prefix(at);
    }
    cut.emplace_back(rest);
  }
  documents = std::move(cut);
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
  scanned_ = searched_ = boundary_ = 0;
  blank_lines_ = 0;
  line_ = 1;
  return true;
}

// Returns the number of bytes in the buffer that form complete documents. Positions in the buffer are stored between
// calls, so that each line is scanned only once.
size_t DocumentReader::whole_documents() {
  const Source& source = sources_[index_ - 1];
  if (is_lines(source)) {
    const size_t end = std::string_view(buffer_).substr(searched_).rfind('\n');
    const size_t whole = end == std::string::npos ? 0 : searched_ + end + 1;
    searched_ = buffer_.size();
    return whole;
  }
  if (source.format == TextFormat::pod || options_.split_blank == 0) return 0;
  size_t end;
  while ((end = buffer_.find('\n', searched_)) != std::string::npos) {
    const bool blank = std::all_of(buffer_.begin() + scanned_, buffer_.begin() + end,
                                   [](char c) { return c == ' ' || c == '\t' || c == '\r'; });
    if (!blank && blank_lines_ >= options_.split_blank) boundary_ = scanned_;
    blank_lines_ = blank ? blank_lines_ + 1 : 0;
    searched_ = scanned_ = end + 1;
  }
  searched_ = buffer_.size();
  return boundary_;
}

bool DocumentReader::next(RawBatch& batch) {
  while (stream_ || open_next()) {
    const bool more = stream_->read(buffer_);
    if (more && buffer_.size() < kBatch) continue;
    const size_t size = more ? whole_documents() : buffer_.size();
    if (more && size == 0) {
      // If a single document is very long, the capacity of the buffer is increased in a few large steps, because each
      // increase copies the buffer.
      const uint64_t rest = sources_[index_ - 1].bytes;
      if (buffer_.size() > kBatch && buffer_.capacity() < 2 * buffer_.size()) {
        buffer_.reserve(std::max<size_t>(2 * buffer_.size(), std::min<uint64_t>(rest + kBatch, 8 * buffer_.size())));
      }
      continue;
    }
    batch.source = &sources_[index_ - 1];
    batch.line = line_;
    if (size == buffer_.size()) {
      batch.text = std::exchange(buffer_, {});
    } else {
      batch.text = buffer_.substr(0, size);
      buffer_.erase(0, size);
    }
    batch.consumed = consumed_before_ + stream_->consumed();
    batch.skipped = skipped_before_ + stream_->skipped();
    if (is_lines(*batch.source)) line_ += std::count(batch.text.begin(), batch.text.end(), '\n');
    scanned_ -= std::min(scanned_, size);
    searched_ -= std::min(searched_, size);
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

DocumentBatch extract_documents(RawBatch&& batch, const DocumentOptions& options) {
  DocumentBatch result;
  result.consumed = batch.consumed;
  result.skipped = batch.skipped;
  if (batch.line == 1 && batch.text.starts_with("\xEF\xBB\xBF")) batch.text.erase(0, 3);  // remove the byte order mark
  if (!is_valid_utf8(batch.text)) {
    std::string valid = to_valid_utf8(batch.text);
    result.replaced = count(valid, kReplacement) - count(batch.text, kReplacement);
    batch.text = std::move(valid);
  }
  switch (batch.source->format) {
    case TextFormat::json_lines:
    case TextFormat::parquet:
      split_lines(batch, options, result);
      break;
    case TextFormat::pod:
      result.documents.push_back(pod_to_text(batch.text, options.pod_code));
      break;
    case TextFormat::plain:
      if (options.split_blank > 0) {
        split_at_blank(batch.text, options.split_blank, result.documents);
      } else {
        result.documents.push_back(std::move(batch.text));
      }
  }
  if (options.max_bytes > 0) cut_long(result.documents, static_cast<size_t>(options.max_bytes));
  std::erase_if(result.documents, [](const std::string& document) { return document.empty(); });
  return result;
}

}  // namespace lazy
