// A folder's chat template: Jinja, rendered by Jinja2 in a Python process.
//
// No Jinja engine for C++ is packaged, and templates use what the engine of transformers has. A process that runs
// Jinja2 as transformers does (a sandbox, trim_blocks, lstrip_blocks) renders them all, and it is there wherever
// PyTorch is, which depends on Jinja2.
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
  // Starts the process and compiles the template. `variables`: an object of what every rendering sees, such as the
  // texts of the special tokens (bos_token). `operation` begins the messages of errors. Error if the template is not
  // valid, or if Python or its jinja2 is missing.
  ChatTemplate(const std::string& source, const nlohmann::ordered_json& variables, const char* operation = "serve");
  ~ChatTemplate();
  // The prompt's text. `messages`: an array of objects, which the template sees as they are. `variables`: more of them;
  // tools and documents are None unless they are given, as in transformers. Error with the template's own message if it
  // refuses the messages (raise_exception); RunError if rendering takes longer than a few seconds. Thread-safe.
  std::string render(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& variables);

 private:
  const char* operation_;
  std::unique_ptr<PythonService> python_;
};

}  // namespace lazy::serve
