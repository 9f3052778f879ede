// A benchmark is data: a file of documents, how it becomes text to score, and which numbers come out.
#pragma once
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace lazy::eval {

// One text whose every token is scored, with the units it is counted in.
struct Document {
  std::string text;
  int64_t words = 0, bytes = 0;  // of the original, before any detokenizer
};

struct Task {
  std::string name;
  std::string version;             // of the task's definition in lm-evaluation-harness
  std::vector<std::string> files;  // looked for below the data folder, the first that exists
  std::string description;
  std::function<std::vector<Document>(std::string_view file_content)> documents;
  std::vector<std::string> metrics;  // word_perplexity, byte_perplexity, bits_per_byte
};

const std::vector<Task>& tasks();
// Error lists the known tasks and suggests the nearest.
const Task& find_task(const std::string& name);
// Reads the task's file below `data`. Error names the files looked for, or the byte that is not UTF-8.
std::vector<Document> load_documents(const Task& task, const std::filesystem::path& data);

}  // namespace lazy::eval
