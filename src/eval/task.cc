#include "eval/task.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "eval/python_text.h"
#include "eval/wikitext.h"

namespace lazy::eval {
namespace fs = std::filesystem;
namespace {

std::vector<Document> wikitext_documents(std::string_view raw) {
  std::vector<Document> documents;
  for (std::string& page : wikitext_pages(raw)) {
    documents.push_back({wikitext_detokenize(page), python_word_count(page), static_cast<int64_t>(page.size())});
  }
  return documents;
}

}  // namespace

const std::vector<Task>& tasks() {
  static const std::vector<Task> all = {
      {"wikitext", "2.0",
       {"wikitext-2-raw-test.txt", "eval/wikitext-2-raw-test.txt", "wikitext-2-raw/wiki.test.raw", "wiki.test.raw"},
       "WikiText-2 raw test pages, rolling log-likelihood; perplexity per word of the original page",
       wikitext_documents, {"word_perplexity", "byte_perplexity", "bits_per_byte"}},
  };
  return all;
}

const Task& find_task(const std::string& name) {
  std::vector<std::string> names = {"heldout"};
  for (const Task& task : tasks()) {
    if (task.name == name) return task;
    names.push_back(task.name);
  }
  const std::string close = nearest(name, names);
  fail("eval", "task '{}': expected one of {}{}", name, fmt::join(names, ", "), close.empty() ? "" : "; did you mean '" + close + "'?");
}

std::vector<Document> load_documents(const Task& task, const fs::path& data) {
  if (!fs::is_directory(data)) fail("eval", "--data {}: expected a folder, found {}", data.string(), fs::exists(data) ? "a file" : "nothing");
  for (const std::string& file : task.files) {
    const fs::path path = data / file;
    if (!fs::exists(path)) continue;
    const std::string content = read_file(path);
    const std::string valid = to_valid_utf8(content);
    if (valid != content) {
      size_t at = 0;
      while (at < content.size() && content[at] == valid[at]) ++at;
      fail("eval", "{}: expected UTF-8, found an invalid sequence at byte {}", path.string(), at);
    }
    auto documents = task.documents(content);
    if (documents.empty()) fail("eval", "{}: expected documents, found none", path.string());
    return documents;
  }
  fail("eval", "{}: task {} needs one of the files {}, found none", data.string(), task.name, fmt::join(task.files, ", "));
}

}  // namespace lazy::eval
