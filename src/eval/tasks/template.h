// The small language in which a task file says how a document becomes text: "Question: {{goal | strip}}\nAnswer:".
//
// {{ }} holds a value and the filters it goes through: a field (choices.text reaches into an object), 'text' or "text",
// a number, or a list [sol1, sol2]. tasks/filters.h has the filters.
#pragma once
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

namespace lazy::eval {

using Json = nlohmann::ordered_json;

// What a document lacks for a template; whoever knows the document's file and line turns it into an Error.
struct DocumentError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A document under the names that templates use: a column may go by several names.
struct Fields {
  const Json& document;
  const std::map<std::string, std::vector<std::string>>& columns;  // name -> names tried in its place, in order
  const Json* find(const std::string& name) const;                 // null: none is there
};

class Template {
 public:
  Template() = default;
  // DocumentError says where the source is wrong.
  explicit Template(std::string source);
  bool empty() const { return source_.empty(); }
  const std::string& source() const { return source_; }
  // Whether the document has every field that is read.
  bool applies(const Fields& fields) const;
  // A template of one {{ }} alone is whatever its expression is; any other is text.
  Json value(const Fields& fields) const;
  std::string text(const Fields& fields) const;                // DocumentError when the value is no text or integer
  std::vector<std::string> texts(const Fields& fields) const;  // DocumentError when it is no list of these

  struct Expression;

 private:
  std::string source_;
  std::vector<std::variant<std::string, std::shared_ptr<const Expression>>> pieces_;
};

// "text", "3", a list's beginning: what an error message shows of a value.
std::string shown(const Json& value);

}  // namespace lazy::eval
