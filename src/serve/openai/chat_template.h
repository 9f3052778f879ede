// A folder's chat template: Jinja, rendered by Jinja2 in a Python process.
//
// No Jinja engine for C++ is packaged, and templates use what the engine of transformers has. A process that runs
// Jinja2 as transformers does (a sandbox, trim_blocks, lstrip_blocks) renders them all, and it is there wherever
// PyTorch is, which depends on Jinja2.
#pragma once
#include <memory>
#include <string>
#include <vector>

namespace lazy::serve {

struct ChatMessage {
  std::string role, content;
};

class ChatTemplate {
 public:
  // Starts the process and compiles the template. Error when the template is not valid, or when Python or its jinja2 is
  // missing.
  ChatTemplate(const std::string& source, const std::string& bos_token, const std::string& eos_token);
  ~ChatTemplate();
  // The prompt's text. Error with the template's own message where it refuses these messages (raise_exception);
  // RunError when it takes longer than a few seconds. Thread-safe.
  std::string render(const std::vector<ChatMessage>& messages, bool add_generation_prompt);

 private:
  struct Process;
  std::unique_ptr<Process> process_;
};

}  // namespace lazy::serve
