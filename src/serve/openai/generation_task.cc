#include "serve/openai/generation_task.h"

#include <atomic>
#include <limits>
#include <mutex>

#include "core/text.h"
#include "generate/output_text.h"
#include "serve/openai/logprobs.h"
#include "serve/openai/submission.h"

namespace lazy::serve {
using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

// A result that the engine's thread passes to the strand.
struct GenerationTask::Event {
  enum class Kind { prompt, token, end } kind = Kind::token;
  std::vector<ScoredToken> tokens;
  bool stop_token = false;
  FinishReason reason = FinishReason::stop;
  std::string message;
};

struct GenerationTask::Choice {
  int64_t index = 0;
  GenerationService::Id id = 0;
  // Weak, because the receiver owns the GenerationTask and a shared_ptr would be a reference cycle. The engine owns the
  // receiver until the generation has ended.
  std::weak_ptr<ChoiceReceiver> receiver;
  OutputText output;
  LogprobArrays logprobs;  // used for completions; chat completions use chat_logprobs
  Json chat_logprobs = Json::array();
  std::string text;                // generated text that has not been sent yet
  std::vector<int64_t> token_ids;  // ids that have not been sent yet, if return_token_ids is set
  int64_t tokens = 0;
  bool ended = false, first = true;
  const char* finish_reason = nullptr;
};

// The engine's thread appends events to a list. The list is processed by a task on the strand, and at most one such
// task is posted at a time.
class GenerationTask::ChoiceReceiver final : public Receiver, public std::enable_shared_from_this<ChoiceReceiver> {
 public:
  ChoiceReceiver(std::shared_ptr<GenerationTask> task, size_t choice)
      : task_(std::move(task)), choice_(choice), last_(task_->started_) {}

  void on_prompt(std::span<const ScoredToken> tokens) override {
    add({.kind = Event::Kind::prompt, .tokens = {tokens.begin(), tokens.end()}});
  }
  bool on_token(const ScoredToken& token, bool stop_token) override {
    const auto now = Clock::now();
    ModelMetrics& metrics = *task_->job_.model->metrics;
    (first_ ? metrics.first_token : metrics.between_tokens).add(std::chrono::duration<double>(now - last_).count());
    first_ = false;
    last_ = now;
    add({.kind = Event::Kind::token, .tokens = {token}, .stop_token = stop_token});
    return !stopped_.load(std::memory_order_relaxed);
  }
  void on_end(FinishReason reason, const std::string& message) override {
    add({.kind = Event::Kind::end, .reason = reason, .message = message});
  }
  void stop() { stopped_ = true; }  // on_token() returns false from now on, which ends the generation

 private:
  void add(Event event) {
    {
      const std::scoped_lock lock(mutex_);
      events_.push_back(std::move(event));
      if (std::exchange(posted_, true)) return;
    }
    task_->exchange_->post([task = task_, receiver = shared_from_this(), choice = choice_] {
      task->take(*task->choices_[choice], receiver->take());
    });
  }
  std::vector<Event> take() {
    const std::scoped_lock lock(mutex_);
    posted_ = false;
    return std::exchange(events_, {});
  }

  const std::shared_ptr<GenerationTask> task_;
  const size_t choice_;
  std::mutex mutex_;
  std::vector<Event> events_;
  bool posted_ = false, first_ = true;
  Clock::time_point last_;
  std::atomic<bool> stopped_ = false;
};

GenerationTask::GenerationTask(GenerationJob job, std::shared_ptr<Exchange> exchange, std::function<void(int)> on_done)
    : job_(std::move(job)), exchange_(std::move(exchange)), on_done_(std::move(on_done)) {}

GenerationTask::~GenerationTask() { done(499); }

void GenerationTask::done(int status) {
  if (const auto callback = std::exchange(on_done_, nullptr)) callback(status);
}

namespace {

// Returns how many characters (0 or 1) the concatenated texts of a prompt's tokens have in addition to the prompt:
// SentencePiece inserts a space before the first word.
int64_t extra_characters(const Tokenizer& tokenizer, const GenerationJob::Prompt& prompt) {
  for (const int64_t id : prompt.ids) {
    const std::string piece = token_bytes(tokenizer, id);
    if (!piece.empty() && !tokenizer.is_special(static_cast<int32_t>(id)))
      return piece.front() == ' ' && !prompt.text.starts_with(' ') ? 1 : 0;
  }
  return 0;
}

}  // namespace

void GenerationTask::start() {
  const ServedModel& model = *job_.model;
  const GenerationFields& fields = job_.fields;
  const Tokenizer& tokenizer = *model.tokenizer;
  exchange_->on_gone([self = shared_from_this()](Gone why) { self->gone(why); });
  for (const GenerationJob::Prompt& prompt : job_.prompts) {
    for (int64_t sample = 0; sample < fields.n; ++sample) {
      const size_t index = choices_.size();
      choices_.push_back(std::unique_ptr<Choice>(new Choice{
          .index = static_cast<int64_t>(index),
          .receiver = {},
          .output = OutputText(tokenizer, fields.stop, fields.skip_special_tokens, prompt.ids),
          .logprobs = LogprobArrays(tokenizer, fields.logprobs, job_.echo ? extra_characters(tokenizer, prompt) : 0,
                                    job_.echo ? std::span<const int64_t>() : prompt.ids)}));
      Choice& choice = *choices_.back();
      if (job_.echo) choice.text = prompt.text;
      const auto receiver = std::make_shared<ChoiceReceiver>(shared_from_this(), index);
      choice.receiver = receiver;
      GenerationRequest request{.prompt = prompt.ids,
                                .sampling = fields.sampling,
                                .max_tokens = *fields.max_tokens,
                                .stop_tokens = fields.ignore_eos ? std::vector<int64_t>{} : model.stop_tokens,
                                .logprobs = fields.logprobs,
                                .prompt_logprobs = job_.echo && fields.logprobs >= 0};
      request.stop_tokens.insert(request.stop_tokens.end(), fields.stop_token_ids.begin(), fields.stop_token_ids.end());
      request.sampling.seed += static_cast<uint64_t>(sample);
      const auto submission = model.engine->submit(std::move(request), receiver);
      if (submission.refusal != GenerationService::Refusal::none) {
        cancel_all();
        exchange_->on_gone([](Gone) {});
        on_done_ = nullptr;  // check_accepted() throws, and the caller sends the error response
        check_accepted(submission, "prompt");
      }
      choice.id = submission.id;
      ++open_;
    }
  }
}

void GenerationTask::take(Choice& choice, std::vector<Event> events) {
  if (!on_done_) return;
  for (const Event& event : events) {
    if (choice.ended) break;
    switch (event.kind) {
      case Event::Kind::prompt:
        for (const ScoredToken& token : event.tokens) choice.logprobs.add(token, in_text(token.id));
        break;
      case Event::Kind::token:
        take_token(choice, event.tokens.front(), event.stop_token);
        break;
      case Event::Kind::end:
        if (event.reason == FinishReason::failed) {
          fail(ApiError(500, event.message, "", "generation_failed"));
          return;
        }
        if (event.reason == FinishReason::cancelled) {
          fail(ApiError(503, "the request was cancelled: the server is shutting down", "", "cancelled"));
          return;
        }
        end_choice(choice, event.reason == FinishReason::length ? "length" : "stop");
    }
  }
  if (job_.fields.stream) send_part(choice);
  if (open_ == 0) finish();
}

bool GenerationTask::in_text(int64_t id) const {
  return !job_.fields.skip_special_tokens || !job_.model->tokenizer->is_special(static_cast<int32_t>(id));
}

void GenerationTask::take_token(Choice& choice, const ScoredToken& token, bool stop_token) {
  const Tokenizer& tokenizer = *job_.model->tokenizer;
  ++choice.tokens;
  if (job_.fields.return_token_ids) choice.token_ids.push_back(token.id);
  if (job_.fields.logprobs >= 0) {
    if (job_.head.protocol == Protocol::completions) {
      choice.logprobs.add(token, !stop_token && in_text(token.id));
    } else if (!stop_token) {
      choice.chat_logprobs.push_back(chat_logprob(tokenizer, token, job_.fields.logprobs));
    }
  }
  if (stop_token || token.id >= tokenizer.vocab_size()) return;
  choice.text += choice.output.push(token.id);
  if (choice.output.stopped()) {
    end_choice(choice, "stop");
    if (const auto receiver = choice.receiver.lock()) receiver->stop();
    job_.model->engine->cancel(choice.id);
  }
}

void GenerationTask::end_choice(Choice& choice, const char* reason) {
  choice.text += choice.output.finish();
  choice.ended = true;
  choice.finish_reason = choice.output.stopped() ? "stop" : reason;
  --open_;
}

ChoicePart GenerationTask::part_of(Choice& choice) {
  ChoicePart part{.index = choice.index,
                  .text = std::exchange(choice.text, {}),
                  .finish_reason = choice.finish_reason,
                  .first = std::exchange(choice.first, false)};
  if (job_.fields.return_token_ids) part.token_ids = std::exchange(choice.token_ids, {});
  if (job_.fields.logprobs >= 0) {
    if (job_.head.protocol == Protocol::completions) {
      part.logprobs = choice.logprobs.take();
    } else {
      part.logprobs = {{"content", std::exchange(choice.chat_logprobs, Json::array())}};
    }
  }
  return part;
}

void GenerationTask::open_stream() {
  if (!std::exchange(streaming_, true)) exchange_->begin_stream("text/event-stream; charset=utf-8");
}

void GenerationTask::send_part(Choice& choice) {
  const bool role = choice.first && job_.head.protocol == Protocol::chat;
  const bool logprobs = !choice.logprobs.empty() || !choice.chat_logprobs.empty();
  if (choice.text.empty() && !logprobs && !role && !choice.finish_reason) return;
  open_stream();
  exchange_->write(sse(chunk(job_.head, part_of(choice), job_.fields.include_usage)));
  if (choice.ended) choice.finish_reason = nullptr;  // the finish reason has already been sent
}

void GenerationTask::finish() {
  if (!on_done_) return;
  Usage usage;
  for (const GenerationJob::Prompt& prompt : job_.prompts) {
    usage.prompt_tokens += static_cast<int64_t>(prompt.ids.size());
  }
  for (const auto& choice : choices_) usage.completion_tokens += choice->tokens;
  if (job_.fields.stream) {
    open_stream();
    if (job_.fields.include_usage) exchange_->write(sse(usage_chunk(job_.head, usage)));
    exchange_->write(sse(kSseDone));
    exchange_->end_stream(200);
  } else {
    std::vector<ChoicePart> parts;
    for (const auto& choice : choices_) parts.push_back(part_of(*choice));
    exchange_->respond({.body = whole_answer(job_.head, std::move(parts), usage)});
  }
  done(200);
}

// The status of a response that has begun cannot change any more. In a stream, the error is sent as an event that ends
// the stream.
void GenerationTask::fail(const ApiError& error) {
  cancel_all();
  if (streaming_) {
    exchange_->write(sse(error.body()));
    exchange_->write(sse(kSseDone));
    exchange_->end_stream(error.status());
  } else {
    exchange_->respond(error.response());
  }
  done(error.status());
}

void GenerationTask::gone(Gone why) {
  if (!on_done_) return;
  if (why == Gone::timeout) {
    fail(ApiError(504, "the response took longer than the server allows", "", "request_timeout"));
  } else {
    cancel_all();
    done(499);
  }
}

void GenerationTask::cancel_all() {
  for (const auto& choice : choices_) {
    if (const auto receiver = choice->receiver.lock()) receiver->stop();
    if (!choice->ended) job_.model->engine->cancel(choice->id);
  }
}

}  // namespace lazy::serve
