#include "eval/data/rows.h"

#include <algorithm>

#include "core/error.h"
#include "core/text.h"
#include "data/corpus/parquet.h"
#include "data/corpus/source.h"
#include "eval/data/files.h"
#include "eval/python_text.h"
#include "eval/wikitext.h"

namespace lazy::eval {
namespace fs = std::filesystem;
namespace {

std::string read_all(ByteStream& stream) {
  std::string content;
  while (stream.read(content)) {
  }
  return content;
}

// nlohmann's messages without their number: "syntax error while parsing value - ...".
std::string reason(const nlohmann::json::exception& error) {
  const std::string text = error.what();
  const size_t at = text.find(": ");
  return at == std::string::npos ? text : text.substr(at + 2);
}

Json parse_line(std::string_view line, const std::string& where) {
  Json document;
  try {
    document = Json::parse(line);
  } catch (const nlohmann::json::exception& error) {
    fail("eval", "{}: expected a JSON object, found none: {}", where, reason(error));
  }
  if (!document.is_object()) fail("eval", "{}: expected a JSON object, found {}", where, shown(document));
  return document;
}

void read_lines(std::string_view content, const std::string& prefix, std::vector<Row>& rows) {
  int64_t number = 0;
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    const std::string_view line = content.substr(begin, end - begin);
    begin = end + 1;
    const std::string where = prefix + std::to_string(++number);
    if (!strip(line).empty()) rows.push_back({parse_line(line, where), where});
  }
}

void read_text(const Task& task, const std::string& content, const std::string& name, std::vector<Row>& rows) {
  if (task.data.plain_text.empty())
    fail("eval", "{}: task {}: expected JSON lines or Parquet, found plain text", name, task.name);
  const std::string valid = to_valid_utf8(content);
  if (valid != content) {
    size_t at = 0;
    while (at < content.size() && content[at] == valid[at]) ++at;
    fail("eval", "{}: expected UTF-8, found an invalid sequence at byte {}", name, at);
  }
  int64_t number = 0;
  const auto add = [&](const char* field, std::string text, std::string where) {
    Json document = Json::object();
    document[field] = std::move(text);
    rows.push_back({std::move(document), std::move(where)});
  };
  if (task.data.plain_text == "wikitext_pages") {
    for (std::string& page : wikitext_pages(content))
      add("page", std::move(page), fmt::format("{}: page {}", name, ++number));
    return;
  }
  for (std::string& line : split(content, '\n')) {
    ++number;
    if (!python_strip(line).empty()) add("text", std::move(line), fmt::format("{}:{}", name, number));
  }
}

void add_computed(const Task& task, Row& row) {
  Json document = row.document;
  for (const auto& [field, templates] : task.computed) {
    const Fields fields{row.document, task.columns};
    const Template* applying = nullptr;
    for (const Template& one : templates) {
      if (!applying && one.applies(fields)) applying = &one;
    }
    document[field] = (applying ? *applying : templates.front()).value(fields);
  }
  row.document = std::move(document);
}

}  // namespace

std::vector<Row> read_rows(const Task& task, const fs::path& data, bool fewshot) {
  std::vector<Row> rows;
  const auto files = find_task_files(task, data, fewshot);
  for (const fs::path& file : files) {
    const bool parquet = file.extension() == ".parquet";
    const std::string content = read_all(*(parquet ? open_parquet(file, kAllColumns) : open_stream(file)));
    const std::string name = file.string();
    if (parquet || name.find(".jsonl") != std::string::npos) {
      read_lines(content, name + (parquet ? ": row " : ":"), rows);
    } else {
      read_text(task, content, name, rows);
    }
  }
  if (rows.empty()) fail("eval", "{}: expected documents, found none", files.front().string());
  for (Row& row : rows) {
    try {
      add_computed(task, row);
    } catch (const DocumentError& error) {
      fail("eval", "{}: {}", row.where, error.what());
    }
  }
  return rows;
}

}  // namespace lazy::eval
