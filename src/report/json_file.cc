#include "report/json_file.h"

#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/file.h"

namespace lazy::report {

Json parse_json(std::string_view text, const std::string& place) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& e) {  // also a number that is out of range
    // "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error ...": keep what helps.
    std::string what = e.what();
    if (const size_t bracket = what.find("] "); bracket != std::string::npos) what.erase(0, bracket + 2);
    if (what.size() > 200) what.resize(200);
    fail("report", "{}: not JSON: {}", place, what);
  }
}

Json load_json(const std::filesystem::path& path) { return parse_json(read_file(path), path.string()); }

void Field::wrong(const std::string& expected) const {
  std::string found = value_->dump(-1, ' ', false, Json::error_handler_t::replace);
  if (found.size() > 60) found = found.substr(0, 57) + "...";
  fail("report", "{}: {}: expected {}, found {} ({})", file_, name_.empty() ? "top level" : name_, expected,
       value_->type_name(), found);
}

Field Field::operator[](const std::string& key) const {
  if (!value_->is_object()) wrong("an object");
  const auto found = value_->find(key);
  const std::string name = name_.empty() ? key : name_ + "." + key;
  if (found == value_->end()) fail("report", "{}: {} is missing", file_, name);
  return {*found, file_, name};
}

Field Field::at(size_t index) const {
  if (index >= size()) fail("report", "{}: {} has {} entries, entry {} is missing", file_, name_, size(), index);
  return {(*value_)[index], file_, name_ + "[" + std::to_string(index) + "]"};
}

size_t Field::size() const {
  if (!value_->is_array()) wrong("an array");
  return value_->size();
}

double Field::number() const {
  if (value_->is_null()) return std::numeric_limits<double>::quiet_NaN();
  if (!value_->is_number()) wrong("a number");
  return value_->get<double>();
}

double Field::share() const {
  const double value = number();
  if (!std::isfinite(value) || value < -1e-4 || value > 1 + 1e-4) wrong("a share between 0 and 1");
  return value;
}

std::string Field::string() const {
  if (!value_->is_string()) wrong("a string");
  return value_->get<std::string>();
}

std::vector<double> Field::numbers() const {
  std::vector<double> values;
  for (size_t i = 0; i < size(); ++i) values.push_back(at(i).number());
  return values;
}

std::vector<std::vector<double>> Field::matrix() const {
  std::vector<std::vector<double>> rows;
  for (size_t i = 0; i < size(); ++i) {
    rows.push_back(at(i).numbers());
    if (rows.back().size() != rows.front().size()) at(i).wrong("as many numbers as in the first row");
  }
  return rows;
}

}  // namespace lazy::report
