// The directory of a zip archive whose entries are stored as they are, as PyTorch writes them. Nothing is trusted:
// every offset and length is checked before it is used.
#pragma once
#include <map>
#include <string>
#include <string_view>

namespace lazy {

inline constexpr char kTorchFile[] = "pytorch file";  // the operation that errors name

// Name -> content, views of `archive`; `file` names it in errors. Error for what is compressed, encrypted, or does not
// lie within the file.
std::map<std::string, std::string_view> zip_entries(std::string_view archive, const std::string& file);

}  // namespace lazy
