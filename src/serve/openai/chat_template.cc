#include "serve/openai/chat_template.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/python_service.h"
#include "render_chat.h"

namespace lazy::serve {
using Json = nlohmann::ordered_json;  // preserves the order of keys, because a template may print the messages

namespace {

constexpr int kRenderSeconds = 5;

}  // namespace

ChatTemplate::ChatTemplate(const std::string& source, const Json& variables, const char* operation)
    : operation_(operation),
      python_(std::make_unique<PythonService>(operation, "chat template", kRenderChat,
                                              Json{{"template", source}, {"variables", variables}})) {
  python_->start();
}

ChatTemplate::~ChatTemplate() = default;

std::string ChatTemplate::render(const Json& messages, const Json& variables) {
  Json question{{"messages", messages}, {"tools", nullptr}, {"documents", nullptr}};
  question.update(variables);
  const Json answer = python_->ask(question, kRenderSeconds);
  if (answer.contains("error")) fail(operation_, "chat template: {}", answer["error"].get<std::string>());
  return answer.at("text").get<std::string>();
}

}  // namespace lazy::serve
