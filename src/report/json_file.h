// JSON files with errors that name the file and the field: "eval.json: results.wikitext: expected an object, found
// null".
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace lazy::report {

using Json = nlohmann::ordered_json;

Json load_json(const std::filesystem::path& path);
Json parse_json(std::string_view text, const std::string& place);  // place: "log.jsonl:17"

// A view of one value that knows where it came from. Every getter throws lazy::Error naming the place.
class Field {
 public:
  Field(const Json& value, std::string file, std::string name = "")
      : value_(&value), file_(std::move(file)), name_(std::move(name)) {}
  bool has(const std::string& key) const {
    return value_->is_object() && value_->contains(key) && !value_->at(key).is_null();
  }
  Field operator[](const std::string& key) const;  // missing: an error
  Field at(size_t index) const;
  size_t size() const;    // of an array
  double number() const;  // null is NaN, as JSON writers put it
  double share() const;   // finite, within [-1e-4, 1 + 1e-4]: what a mean of weights may be
  std::string string() const;
  std::vector<double> numbers() const;
  std::vector<std::vector<double>> matrix() const;  // rows of equal length
  const Json& json() const { return *value_; }
  [[noreturn]] void wrong(const std::string& expected) const;

 private:
  const Json* value_;
  std::string file_, name_;
};

}  // namespace lazy::report
