#include "data/output_folder.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string>

#include "core/error.h"
#include "core/file.h"

namespace lazy {
namespace fs = std::filesystem;

namespace {

// TARGET.tmp-PID where no such process is alive.
void remove_leftovers(const fs::path& target) {
  const std::string prefix = target.filename().string() + ".tmp-";
  const fs::path parent = target.has_parent_path() ? target.parent_path() : fs::path(".");
  if (!fs::is_directory(parent)) return;
  for (const auto& entry : fs::directory_iterator(parent)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix) || !entry.is_directory()) continue;
    const std::string number = name.substr(prefix.size(), name.find('.', prefix.size()) - prefix.size());
    if (number.empty() || number.size() > 9 || number.find_first_not_of("0123456789") != std::string::npos) continue;
    if (::kill(std::stoi(number), 0) == 0 || errno == EPERM) continue;
    std::error_code ignored;
    fs::remove_all(entry.path(), ignored);
  }
}

}  // namespace

OutputFolder::OutputFolder(const fs::path& target)
    : target_(target), path_(target.string() + ".tmp-" + std::to_string(::getpid())) {
  remove_leftovers(target);
  std::error_code error;
  fs::create_directories(path_, error);
  if (error) fail_run("data", "{}: {}", path_.string(), error.message());
}

OutputFolder::~OutputFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

void OutputFolder::publish() {
  if (fs::exists(target_)) {
    const fs::path old = path_.string() + ".old";
    fs::rename(target_, old);
    try {
      publish_directory(path_, target_);
    } catch (...) {
      fs::rename(old, target_);
      throw;
    }
    fs::remove_all(old);
  } else {
    publish_directory(path_, target_);
  }
  path_.clear();
}

}  // namespace lazy
