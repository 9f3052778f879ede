// JSON files with errors that name the file and the field: "eval.json: results.wikitext: expected an object, found
// null".
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "core/json_field.h"

namespace lazy::report {

using Json = nlohmann::ordered_json;

Json load_json(const std::filesystem::path& path);
Json parse_json(std::string_view text, const std::string& place);  // place: "log.jsonl:17"

// A view of one JSON value that knows its position in the file, for error messages.
class Field : public OrderedJsonField {
 public:
  Field(const Json& value, std::string file, std::string name = "")
      : OrderedJsonField("report", value, std::move(file), std::move(name)) {}
  Field(OrderedJsonField field) : OrderedJsonField(std::move(field)) {}
};

}  // namespace lazy::report
