#include "eval/data/files.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/error.h"

namespace lazy::eval {
namespace fs = std::filesystem;
namespace {

bool of_split(const fs::path& file, const std::string& split) {
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
    if (!configured || !entry.is_regular_file() || !of_split(inside, split)) continue;
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

}  // namespace lazy::eval
