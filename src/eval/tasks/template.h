// The template language of task files, which renders a document as text: "Question: {{goal | strip}}\nAnswer:".
//
// {{ }} holds a value and the filters applied to it. A value is a field (choices.text is a member of an object), 'text'
// or "text", a number, or a list [sol1, sol2]. tasks/filters.h documents the filters.
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

// A document that does not fit a template. The caller adds the document's file and line and throws an Error.
struct DocumentError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A document's fields under the names that templates use; a column may have several names.
struct Fields {
  const Json& document;
  const std::map<std::string, std::vector<std::string>>& columns;  // name -> alternative names, tried in order
  const Json* find(const std::string& name) const;                 // null when absent
};

class Template {
 public:
  Template() = default;
  // DocumentError names the place of a syntax error.
  explicit Template(std::string source);
  bool empty() const { return source_.empty(); }
  const std::string& source() const { return source_; }
  // Whether the document has every field that the template reads.
  bool applies(const Fields& fields) const;
  // The value of the expression when the template is a single {{ }}, else text.
  Json value(const Fields& fields) const;
  std::string text(const Fields& fields) const;                // DocumentError unless the value is text or an integer
  std::vector<std::string> texts(const Fields& fields) const;  // DocumentError unless it is a list of these

  struct Expression;

 private:
  std::string source_;
  std::vector<std::variant<std::string, std::shared_ptr<const Expression>>> shards_;
};

// A value in an error message, shortened to 60 characters.
std::string shown(const Json& value);

}  // namespace lazy::eval
