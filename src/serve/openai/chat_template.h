// Chat template of a model folder: a Jinja template that Jinja2 renders in a Python process.
//
// Jinja engines for C++ are not available as packages, and templates use features of Jinja2 as configured in
// transformers. A Python process with this configuration (sandbox, trim_blocks, lstrip_blocks) renders all of them.
// Jinja2 is available wherever PyTorch is installed, because PyTorch depends on it.
#pragma once
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace lazy {
class PythonService;
}

namespace lazy::serve {

class ChatTemplate {
 public:
  // Starts the process and compiles the template. variables: an object with the variables of all renderings, such as
  // the special tokens (bos_token). operation: prefix of error messages. Throws Error if the template is invalid, or if
  // Python or its package jinja2 is missing.
  ChatTemplate(const std::string& source, const nlohmann::ordered_json& variables, const char* operation = "serve");
  ~ChatTemplate();
  // Returns the text of the prompt. messages: an array of objects, which the template receives with two changes. First,
  // the arguments of tool calls, which are a JSON text in OpenAI's API, are converted to objects unless the template
  // needs the text. Second, a null content is replaced by an empty text if the template fails at null or prints None.
  // variables: additional variables; `tools` and `documents` are None by default, as in transformers. Throws Error with
  // the template's message if the template rejects the messages (raise_exception), or with the line of the template if
  // it cannot render them. Throws RunError if rendering takes longer than a few seconds. Thread-safe.
  std::string render(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& variables);

 private:
  const char* operation_;
  std::unique_ptr<PythonService> python_;
};

}  // namespace lazy::serve
