#include "eval/tasks/documents.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/python_json.h"
#include "core/text.h"
#include "data/corpus/source.h"
#include "eval/python.h"

namespace lazy::eval {

namespace fs = std::filesystem;
namespace {

bool belongs_to_split(const fs::path& file, const std::string& split) {
  const std::string stem = file.filename().string();
  const bool named = stem.starts_with(split) &&
                     (stem.size() == split.size() || !std::isalnum(static_cast<unsigned char>(stem[split.size()])));
  return named || file.parent_path().filename() == split;
}

bool is_json_lines(const std::string& name) {
  return name.ends_with(".jsonl") || name.ends_with(".jsonl.gz") || name.ends_with(".jsonl.zst");
}

std::vector<fs::path> files_of_split(const fs::path& folder, const std::string& config, const std::string& split) {
  std::vector<fs::path> parquet, lines;
  if (!fs::is_directory(folder)) return lines;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const fs::path inside = entry.path().lexically_relative(folder);
    const bool configured = config.empty() || std::find(inside.begin(), inside.end(), fs::path(config)) != inside.end();
    if (!configured || !entry.is_regular_file() || !belongs_to_split(inside, split)) continue;
    if (inside.extension() == ".parquet") parquet.push_back(entry.path());
    if (is_json_lines(inside.string())) lines.push_back(entry.path());
  }
  std::vector<fs::path>& found = parquet.empty() ? lines : parquet;
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

std::vector<fs::path> find_task_files(const Task& task, const fs::path& data, bool fewshot) {
  if (!fs::is_directory(data))
    fail("eval", "--data {}: expected a folder, found {}", data.string(), fs::exists(data) ? "a file" : "nothing");
  const auto& names = fewshot ? task.data.fewshot_files : task.data.files;
  const std::string& split = fewshot ? task.data.fewshot_split : task.data.split;
  for (const std::string& name : names) {
    for (const fs::path& folder : {data, data / "eval"}) {
      for (const char* ending : {"", ".zst", ".gz"}) {
        const fs::path path = folder / (name + ending);
        if (fs::is_regular_file(path)) return {path};
      }
    }
  }
  for (const std::string& source : task.data.hub) {
    const size_t colon = std::min(source.find(':'), source.size());
    const std::string repository = source.substr(0, colon),
                      config = colon < source.size() ? source.substr(colon + 1) : "";
    const size_t slash = repository.find('/');
    std::vector<fs::path> folders = {data / repository};
    if (slash != std::string::npos) {
      folders.push_back(data / (repository.substr(0, slash) + "--" + repository.substr(slash + 1)));
      folders.push_back(data / repository.substr(slash + 1));
    }
    for (const fs::path& folder : folders) {
      if (auto found = files_of_split(folder, config, split); !found.empty()) return found;
    }
  }
  std::vector<std::string> wanted = names;
  for (const std::string& source : task.data.hub)
    wanted.push_back(fmt::format("{} of {} (.parquet, .jsonl)", split, source));
  fail("eval", "{}: task {} needs{} one of the files {}; found none", data.string(), task.name,
       fewshot ? " for its examples" : "", fmt::join(wanted, ", "));
}

bool has_task_files(const Task& task, const std::filesystem::path& data) {
  try {
    return !find_task_files(task, data, false).empty();
  } catch (const Error&) {
    return false;
  }
}

namespace fs = std::filesystem;
namespace {

std::string read_all(ByteStream& stream) {
  std::string content;
  while (stream.read(content)) {
  }
  return content;
}

// Returns the message of nlohmann::json without its error number: "syntax error while parsing value - ...".
std::string reason(const nlohmann::json::exception& error) {
  const std::string text = error.what();
  const size_t at = text.find(": ");
  return at == std::string::npos ? text : text.substr(at + 2);
}

Json parse_line(std::string_view line, const std::string& where) {
  Json document = parse_python_json<Json>(line);
  if (document.is_discarded()) {
    try {
      document = Json::parse(line);  // throws an exception that contains the reason
    } catch (const nlohmann::json::exception& error) {
      fail("eval", "{}: expected a JSON object, found none: {}", where, reason(error));
    }
  }
  if (!document.is_object()) fail("eval", "{}: expected a JSON object, found {}", where, shown(document));
  return document;
}

void read_lines(std::string_view content, const std::string& prefix, std::vector<TaskDocument>& rows) {
  int64_t number = 0;
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    const std::string_view line = content.substr(begin, end - begin);
    begin = end + 1;
    const std::string where = prefix + std::to_string(++number);
    if (!strip(line).empty()) rows.push_back({parse_line(line, where), where});
  }
}

void read_text(const Task& task, const std::string& content, const std::string& name, std::vector<TaskDocument>& rows) {
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

void add_computed(const Task& task, TaskDocument& row) {
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

std::vector<TaskDocument> read_rows(const Task& task, const fs::path& data, bool fewshot) {
  std::vector<TaskDocument> rows;
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
  if (rows.empty()) fail("eval", "{}: expected at least one document, found none", files.front().string());
  for (TaskDocument& row : rows) {
    try {
      add_computed(task, row);
    } catch (const DocumentError& error) {
      fail("eval", "{}: {}", row.where, error.what());
    }
  }
  return rows;
}

int64_t apply_limit(int64_t available, const std::optional<double>& limit) {
  if (!limit) return available;
  const double count = *limit < 1 ? std::ceil(static_cast<double>(available) * *limit) : *limit;
  return std::min(available, static_cast<int64_t>(count));
}

std::vector<std::string> wikitext_pages(std::string_view raw) {
  std::vector<std::string> pages;
  std::string page;
  bool first_line = true;
  const auto finish = [&] {
    if (!python_strip(page).empty()) pages.push_back(page);
    page.clear();
    first_line = true;
  };
  for (size_t begin = 0;;) {
    const size_t end = std::min(raw.find('\n', begin), raw.size());
    const std::string_view line = raw.substr(begin, end - begin);
    const std::string folded = replace_all(replace_all(std::string(line), "= = =", "==="), "= =", "==");
    const std::string_view heading = python_strip(folded);
    if (heading.starts_with("= ") && heading.ends_with(" =")) finish();
    if (!first_line) page += '\n';
    page += line;
    first_line = false;
    if (end == raw.size()) break;
    begin = end + 1;
  }
  finish();
  return pages;
}

}  // namespace lazy::eval
