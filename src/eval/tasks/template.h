// The template language of task files, which renders a document as text: "Question: {{goal | strip}}\nAnswer:".
//
// {{ }} contains a value and the filters applied to it. A value is a field (choices.text is a member of an object),
// 'text' or "text", a number, or a list [sol1, sol2]. The filters are documented in tasks/filters.h.
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

// Thrown if a document does not fit a template. The caller adds the file and line of the document and throws an Error.
struct DocumentError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The fields of a document under the names that templates use. A column may have several names.
struct Fields {
  const Json& document;
  // alternative names of each field, which are tried in order
  const std::map<std::string, std::vector<std::string>>& columns;
  const Json* find(const std::string& name) const;  // null if the document has no such field
};

class Template {
 public:
  Template() = default;
  // Parses the template. Throws a DocumentError with the position of a syntax error.
  explicit Template(std::string source);
  bool empty() const { return source_.empty(); }
  const std::string& source() const { return source_; }
  // Returns whether the document has every field that the template reads.
  bool applies(const Fields& fields) const;
  // Returns the value of the expression if the template is a single {{ }}; otherwise returns text.
  Json value(const Fields& fields) const;
  std::string text(const Fields& fields) const;  // throws DocumentError unless the value is text or an integer
  // throws DocumentError unless the value is a list of texts or integers
  std::vector<std::string> texts(const Fields& fields) const;

  struct Expression;

 private:
  std::string source_;
  std::vector<std::variant<std::string, std::shared_ptr<const Expression>>> shards_;
};

// Formats a value for an error message, shortened to 60 characters.
std::string shown(const Json& value);

}  // namespace lazy::eval
