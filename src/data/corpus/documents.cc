#include "data/corpus/documents.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <string_view>

#include "core/error.h"
#include "core/text.h"
#include "data/corpus/pod.h"

namespace lazy {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

int64_t count(std::string_view text, std::string_view what) {
  int64_t n = 0;
  for (size_t at = 0; (at = text.find(what, at)) != std::string_view::npos; at += what.size()) ++n;
  return n;
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

// The text field of one line. nlohmann's message starts with a code and counts columns; ours names file and line.
std::string text_of(std::string_view line, const RawBatch& batch, int64_t number, const std::string& field) {
  const std::string where = fmt::format("{}:{}", batch.source->name(), number);
  const Json json = Json::parse(line, nullptr, false);
  if (json.is_discarded()) {
    fail("data", "{}: expected a JSON object, found \"{}\"", where,
         line.substr(0, complete_utf8_prefix(line.substr(0, 40))));
  }
  if (!json.is_object()) fail("data", "{}: expected a JSON object, found {}", where, json.type_name());
  const auto found = json.find(field);
  if (found == json.end()) {
    std::vector<std::string> names;
    for (const auto& [name, value] : json.items()) names.push_back(name);
    fail("data", "{}: field \"{}\" is missing; the line has {}", where, field, fmt::join(names, ", "));
  }
  if (!found->is_string()) {
    fail("data", "{}: field \"{}\": expected a string, found {}", where, field, found->type_name());
  }
  return found->get<std::string>();
}

void split_lines(const RawBatch& batch, const std::string& field, std::vector<std::string>& documents) {
  int64_t number = batch.line;
  for (size_t at = 0; at < batch.text.size(); ++number) {
    const size_t end = std::min(batch.text.find('\n', at), batch.text.size());
    const std::string_view line(batch.text.data() + at, end - at);
    if (!is_blank(line)) documents.push_back(text_of(line, batch, number, field));
    at = end + 1;
  }
}

// Parts at runs of `blank_lines` blank lines or more, which belong to neither side.
void split_at_blank(const std::string& text, int64_t blank_lines, std::vector<std::string>& documents) {
  size_t begin = 0, end = 0, at = 0;  // the document, without blank lines at its end
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

// A place at most `limit` bytes in where a text may be cut: after a blank line, else a line, else a word, else a
// character.
size_t cut_before(std::string_view text, size_t limit) {
  for (const std::string_view separator : {"\n\n", "\n", " "}) {
    if (separator.size() > limit) continue;
    const size_t at = text.rfind(separator, limit - separator.size());
    if (at != std::string_view::npos && at + separator.size() > limit / 2) return at + separator.size();
  }
  const auto inside = [&](size_t at) { return (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80; };
  size_t at = limit;
  while (at > 0 && inside(at)) --at;
  if (at == 0) {  // not even one character fits
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

DocumentBatch extract_documents(RawBatch&& batch, const DocumentOptions& options) {
  DocumentBatch result;
  result.consumed = batch.consumed;
  result.skipped = batch.skipped;
  if (batch.line == 1 && batch.text.starts_with("\xEF\xBB\xBF")) batch.text.erase(0, 3);  // byte order mark
  std::string valid = to_valid_utf8(batch.text);
  if (valid != batch.text) {
    result.replaced = count(valid, kReplacement) - count(batch.text, kReplacement);
    batch.text = std::move(valid);
  }
  switch (batch.source->format) {
    case TextFormat::json_lines:
    case TextFormat::parquet:
      split_lines(batch, options.text_field, result.documents);
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
