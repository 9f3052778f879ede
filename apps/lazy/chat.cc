// `lazy chat`: a conversation with a model in the terminal. If standard input is not a terminal, every line is a
// message, including lines that begin with '/', which are commands on a terminal.
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "command.h"
#include "common_options.h"
#include "model_path.h"
#include "print_text.h"
#include "served_folder.h"

#include "core/error.h"
#include "core/known_names.h"
#include "core/log.h"
#include "core/stop.h"
#include "core/terminal.h"
#include "core/text.h"

namespace lazy {
namespace {

using Json = nlohmann::ordered_json;

struct ChatArguments {
  std::string model, system;
  SamplingOptions sampling = cli::kDefaultSampling;
  int64_t max_tokens = 0;
  bool download = false;
  cli::ServingOptions serving;
};

// On a terminal, SIGINT stops the current answer but not the program. The handlers in core/stop.h, which other commands
// use, would end the program. SIGTERM and SIGUSR1 end the program.
std::atomic<bool> interrupted = false;

void install_interrupt_handler() {
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = true; };
  action.sa_flags = SA_ONSTACK;  // run the handler on the alternate stack of ops/signal_stack.h
  sigaction(SIGINT, &action, nullptr);
}

bool must_stop() { return interrupted || stop_requested(); }

// Reads the lines of standard input.
class InputLines {
 public:
  // Returns the next line without its newline, or nullopt at the end of the input or if must_stop() returns true.
  std::optional<std::string> next() {
    for (;;) {
      if (const size_t end = buffer_.find('\n'); end != std::string::npos) return take(end, 1);
      if (ended_) return buffer_.empty() ? std::nullopt : std::optional(take(buffer_.size(), 0));
      // poll() has a timeout of 100 ms, so that a signal that arrives after the call of must_stop() is handled within
      // 100 ms.
      pollfd state{STDIN_FILENO, POLLIN, 0};
      if (must_stop()) return std::nullopt;
      if (::poll(&state, 1, 100) <= 0) continue;
      char piece[4096];
      const ssize_t count = ::read(STDIN_FILENO, piece, sizeof piece);
      if (count < 0 && errno != EINTR) fail_run("chat", "standard input: {}", std::strerror(errno));
      if (count > 0) buffer_.append(piece, static_cast<size_t>(count));
      ended_ = count == 0;
    }
  }
  void discard() { buffer_.clear(); }

 private:
  std::string take(size_t count, size_t separator) {
    std::string line = buffer_.substr(0, count);
    buffer_.erase(0, count + separator);
    if (line.ends_with('\r')) line.pop_back();
    return to_valid_utf8(line);
  }

  std::string buffer_;
  bool ended_ = false;
};

class Conversation {
 public:
  Conversation(const serve::ServedModel& model, const ChatArguments& options)
      : model_(model), options_(options), max_tokens_(options.max_tokens) {
    clear();
  }

  // Removes all messages except the system prompt. The next answer is sampled with the first seed, as in a new chat.
  void clear() {
    messages_ = Json::array();
    sampling_ = options_.sampling;
    if (!options_.system.empty()) add(messages_, "system", options_.system);
    first_exchange_ = messages_.size();
  }

  // Prints the model's answer and adds the message and the answer to the history. Throws Error and leaves the history
  // unchanged if the template refuses the message or if the message is too long.
  void answer(const std::string& message) {
    Json messages = messages_;
    add(messages, "user", message);
    const std::vector<int64_t> prompt = fit(messages);
    const int64_t rest = model_.engine->max_request_tokens() - static_cast<int64_t>(prompt.size());
    GenerationRequest request{.prompt = prompt,
                              .sampling = sampling_,
                              .max_tokens = max_tokens_ > 0 ? std::min(max_tokens_, rest) : rest,
                              .stop_tokens = model_.stop_tokens};
    const auto tokens = std::make_shared<TokenQueue>();
    const auto submission = model_.engine->submit(std::move(request), tokens);
    if (submission.refusal != GenerationService::Refusal::none) fail("chat", "{}", submission.message);
    const cli::PrintedText text = cli::print_text("chat", *model_.engine, submission.id, *tokens, *model_.tokenizer,
                                                  OutputText(*model_.tokenizer, {}, true, prompt), must_stop);
    cli::print("chat", "\n");
    if (text.reason == FinishReason::length) log::info("the answer was cut off after {} tokens", text.tokens);
    add(messages, "assistant", text.text);
    messages_ = std::move(messages);
    ++sampling_.seed;
  }

 private:
  static void add(Json& messages, const char* role, const std::string& content) {
    messages.push_back({{"role", role}, {"content", content}});
  }

  // Returns the prompt ids for `messages`. Removes the oldest exchanges from `messages` until enough tokens of the
  // context are left for the answer: a quarter of the context, or max_tokens_ if that is less.
  std::vector<int64_t> fit(Json& messages) const {
    const int64_t context = model_.engine->max_request_tokens(), quarter = std::max<int64_t>(context / 4, 1);
    const int64_t most = context - (max_tokens_ > 0 ? std::min(max_tokens_, quarter) : quarter);
    for (int64_t removed = 0;; ++removed) {
      std::vector<int64_t> prompt = model_.encode_chat(messages, {{"add_generation_prompt", true}});
      if (prompt.empty()) fail("chat", "the chat template rendered an empty text");
      const auto length = static_cast<int64_t>(prompt.size());
      if (length <= most) {
        if (removed > 0) {
          log::warn("the context of {} tokens is full: the model no longer sees the oldest {}", context,
                    removed == 1 ? "exchange" : fmt::format("{} exchanges", removed));
        }
        return prompt;
      }
      if (messages.size() < first_exchange_ + 3) {
        fail("chat", "the message{} has {} tokens; the context of {} tokens allows at most {} before the answer",
             first_exchange_ > 0 ? " with the system prompt" : "", length, context, most);
      }
      const auto oldest = messages.begin() + static_cast<std::ptrdiff_t>(first_exchange_);
      messages.erase(oldest, oldest + 2);
    }
  }

  const serve::ServedModel& model_;
  const ChatArguments& options_;
  SamplingOptions sampling_;
  int64_t max_tokens_;
  Json messages_ = Json::array();
  size_t first_exchange_ = 0;  // index in messages_ of the first user message: 1 after a system prompt
};

// A command that the user types at the prompt. `run` returns false to end the chat.
struct ChatCommand {
  const char *name, *help;
  bool (*run)(Conversation&);
};

bool print_commands(Conversation&);

const std::vector<ChatCommand> kCommands{{"/help", "list the commands", print_commands},
                                         {"/clear", "start a new conversation; the system prompt stays",
                                          [](Conversation& conversation) {
                                            conversation.clear();
                                            log::info("the conversation is empty");
                                            return true;
                                          }},
                                         {"/exit", "end the chat", [](Conversation&) { return false; }},
                                         {"/quit", "end the chat", [](Conversation&) { return false; }}};

bool print_commands(Conversation&) {
  std::string text;
  for (const ChatCommand& command : kCommands) text += fmt::format("  {:8}{}\n", command.name, command.help);
  text +=
      "  Ctrl-C  stop the answer\n  Ctrl-D  end the chat\nTo send a message that begins with /, type a space before "
      "it.\n";
  cli::print("chat", text);
  return true;
}

// Runs the command `line`, which begins with '/'. Returns false if the chat ends.
bool run_command(const std::string& line, Conversation& conversation) {
  for (const ChatCommand& command : kCommands) {
    if (line == command.name) return command.run(conversation);
  }
  const std::string similar = did_you_mean(line, names_of(kCommands));
  log::warn("unknown command '{}'{}", line, similar.empty() ? "; /help lists the commands" : similar);
  return true;
}

void converse(Conversation& conversation, bool terminal) {
  InputLines input;
  // Counts the interrupts (Ctrl-C) since the last message. The second interrupt ends the chat.
  for (int interrupts = 0; interrupts < 2;) {
    if (terminal) cli::print("chat", bold("> ", STDOUT_FILENO));
    const std::optional<std::string> line = input.next();
    end_if_stopped("chat");
    if (interrupted.exchange(false)) {
      input.discard();
      cli::print("chat", "\n");
      if (++interrupts < 2) log::info("press Ctrl-C again, or Ctrl-D, to end the chat");
      continue;
    }
    if (!line) {
      if (terminal) cli::print("chat", "\n");
      break;
    }
    if (strip(*line).empty()) continue;
    interrupts = 0;
    if (terminal && line->starts_with('/')) {
      if (!run_command(std::string(strip(*line)), conversation)) break;
      continue;
    }
    try {
      conversation.answer(*line);
    } catch (const RunError&) {
      throw;
    } catch (const Error& error) {
      if (!terminal) throw;
      log::warn("{}", error.what());
    }
    if (interrupted.exchange(false)) interrupts = 1;
    if (terminal) cli::print("chat", "\n");
  }
}

void run(const ChatArguments& options) {
  options.sampling.validate("chat");
  install_stop_handlers();
  const std::string path = cli::resolve_model_folder("chat", options.model, options.download);
  if (serve::read_chat_template(path, "chat").empty()) {
    fail("chat",
         "{}: expected a chat template (chat_template.jinja, or chat_template in tokenizer_config.json), found none; "
         "`lazy generate {} --prompt TEXT` continues a text without one",
         path, cli::shell_word(options.model));
  }
  const cli::ServedFolder folder("chat", path, options.model, options.serving);
  if (!folder.model.chat) fail("chat", "{}: {}", path, folder.model.chat_problem);
  end_if_stopped("chat");
  const bool terminal = ::isatty(STDIN_FILENO) != 0;
  if (terminal) {
    install_interrupt_handler();
    log::info("/help lists the commands, Ctrl-C stops an answer, Ctrl-D ends the chat");
  }
  Conversation conversation(folder.model, options);
  converse(conversation, terminal);
}

}  // namespace

LAZY_COMMAND(chat, "Chat with a model in the terminal", [](CLI::App& command) {
  auto o = std::make_shared<ChatArguments>();
  command.add_option("model", o->model, "Model folder with a chat template, or run folder")->required();
  cli::add_download_option(command, o->download);
  command.add_option("--system", o->system, "System prompt, the first message of the conversation");
  command.add_option("--max-tokens", o->max_tokens, "Maximum number of tokens per answer; 0: the rest of the context")
      ->capture_default_str()
      ->check(cli::kNonNegative);
  cli::add_sampling_options(command, o->sampling, "answer n uses seed + n, counted from 0");
  cli::add_serving_options(command, o->serving, "Memory");
  command.footer(
      "Examples:\n"
      "  lazy chat smollm2\n"
      "  lazy chat smollm2 --system 'Answer in one sentence.' --temperature 0\n"
      "  printf 'Hello\\nWhat did I say?\\n' | lazy chat smollm2");
  command.callback([o] {
    cli::share_cores(cli::kServingSpins);
    run(*o);
  });
});

}  // namespace lazy
