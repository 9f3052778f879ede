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

bool is_hub_name(const std::string& path) {
  const size_t slash = path.find('/');
  const std::string organization = slash == std::string::npos ? "" : path.substr(0, slash);
  if (path.ends_with(".gguf")) return false;  // probably a mistyped file name
  std::error_code ignored;
  if (!is_name(slash == std::string::npos ? path : path.substr(slash + 1))) return false;
  if (slash != std::string::npos && !is_name(organization)) return false;
  if (std::filesystem::exists(path, ignored)) return false;
  // If a folder "runs" exists, "runs/lazy" is treated as a path and not as a Hub name.
  return organization.empty() || !std::filesystem::exists(organization, ignored);
}

std::string hub_download_hint(const std::string& path) {
  if (!is_hub_name(path)) return "";
  const size_t slash = path.find('/');
  return fmt::format("; if '{}' is a model on the Hugging Face Hub, download it: `hf download {} --local-dir {}`", path,
                     path, slash == std::string::npos ? path : path.substr(slash + 1));
}

}  // namespace lazy
