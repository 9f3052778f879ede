#include "model/weight_map.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/python_json.h"

namespace lazy {

std::map<std::string, std::vector<std::string>> read_weight_map(const std::filesystem::path& path,
                                                                const char* operation) {
  const nlohmann::json root = parse_python_json(read_file(path));
  if (root.is_discarded()) fail(operation, "{}: expected JSON", path.string());
  const auto map = root.is_object() ? root.find("weight_map") : root.end();
  if (map == root.end() || !map->is_object()) {
    fail(operation, "{}: weight_map: expected an object that maps tensor names to file names", path.string());
  }
  std::map<std::string, std::vector<std::string>> by_file;
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string()) fail(operation, "{}: weight_map: {}: expected a file name", path.string(), name);
    const std::filesystem::path shard = file.get<std::string>();
    // A checkpoint is untrusted input: an index must not refer to files outside its own folder.
    if (shard.empty() || shard != shard.filename() || shard == ".." || shard == ".") {
      fail(operation, "{}: weight_map: {}: expected a plain file name, found '{}'", path.string(), name,
           shard.string());
    }
    by_file[shard.string()].push_back(name);
  }
  return by_file;
}

}  // namespace lazy
