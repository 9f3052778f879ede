#include "core/hub_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

namespace lazy {

namespace {

bool is_name(const std::string& text) {
  const auto allowed = [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_' || c == '.'; };
  return !text.empty() && text.size() <= 96 && std::isalnum(static_cast<unsigned char>(text.front())) &&
         std::all_of(text.begin(), text.end(), allowed);
}

}  // namespace

std::string hub_download_hint(const std::string& path) {
  const size_t slash = path.find('/');
  const std::string organization = slash == std::string::npos ? "" : path.substr(0, slash);
  const std::string model = slash == std::string::npos ? path : path.substr(slash + 1);
  std::error_code ignored;
  if (!is_name(model) || (slash != std::string::npos && !is_name(organization))) return "";
  if (std::filesystem::exists(path, ignored)) return "";
  // "runs/lazy" is a path if there is a folder "runs".
  if (!organization.empty() && std::filesystem::exists(organization, ignored)) return "";
  return fmt::format("; if '{}' is a model on the Hugging Face Hub, download it: `hf download {} --local-dir {}`", path,
                     path, model);
}

}  // namespace lazy
