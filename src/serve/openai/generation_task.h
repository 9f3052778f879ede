// State of one completion request: submits its choices to the engine, converts tokens to text and writes the response.
//
// The engine's thread only appends its results to a list. The connection's strand decodes the tokens, searches for stop
// strings and writes the response.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "serve/http/exchange.h"
#include "serve/openai/request.h"
#include "serve/openai/response.h"
#include "serve/openai/served_model.h"

namespace lazy::serve {

struct GenerationJob {
  AnswerHead head;
  std::shared_ptr<const ServedModel> model;
  GenerationFields fields;  // max_tokens must be set
  bool echo = false;
  struct Prompt {
    std::vector<int64_t> ids;
    std::string text;  // text of the prompt, used with `echo`
  };
  std::vector<Prompt> prompts;
};

class GenerationTask : public std::enable_shared_from_this<GenerationTask> {
 public:
  // `on_done` is called exactly once with the status of the response; 499 means that the client has disconnected.
  GenerationTask(GenerationJob job, std::shared_ptr<Exchange> exchange, std::function<void(int)> on_done);
  ~GenerationTask();
  // Throws ApiError if the engine refuses a choice; in this case no choice runs. Except for the receivers, all
  // functions of this class must be called on the strand.
  void start();

 private:
  struct Choice;
  struct Event;
  class ChoiceReceiver;

  void take(Choice& choice, std::vector<Event> events);
  void take_token(Choice& choice, const ScoredToken& token, bool stop_token);
  bool in_text(int64_t id) const;  // false for special tokens that are omitted from the text
  void end_choice(Choice& choice, const char* reason);
  void send_part(Choice& choice);
  void finish();
  void fail(const ApiError& error);
  void gone(Gone why);
  void cancel_all();
  void done(int status);
  void open_stream();
  ChoicePart part_of(Choice& choice);

  const GenerationJob job_;
  const std::shared_ptr<Exchange> exchange_;
  std::function<void(int)> on_done_;
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  std::vector<std::unique_ptr<Choice>> choices_;
  size_t open_ = 0;  // number of choices that have not ended
  bool streaming_ = false;
};

}  // namespace lazy::serve
