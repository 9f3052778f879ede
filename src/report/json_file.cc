#include "report/json_file.h"

#include "core/error.h"
#include "core/file.h"

namespace lazy::report {

Json parse_json(std::string_view text, const std::string& place) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& e) {  // syntax errors and numbers out of range
    // nlohmann's message is "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error ...". The
    // part in brackets is removed.
    std::string what = e.what();
    if (const size_t bracket = what.find("] "); bracket != std::string::npos) what.erase(0, bracket + 2);
    if (what.size() > 200) what.resize(200);
    fail("report", "{}: invalid JSON: {}", place, what);
  }
}

Json load_json(const std::filesystem::path& path) { return parse_json(read_file(path), path.string()); }

}  // namespace lazy::report
