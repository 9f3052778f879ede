#include "serve/openai/chat_template.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/python_child.h"
#include "render_chat.h"

namespace lazy::serve {
using Json = nlohmann::ordered_json;  // a template may write the messages as they are

namespace {

constexpr int kStartSeconds = 30, kRenderSeconds = 5;
constexpr size_t kMaxAnswer = 64 << 20;

}  // namespace

// A child that answers lines with lines, over a socket pair.
struct ChatTemplate::Process {
  Json first;
  std::mutex mutex;
  pid_t child = -1;
  int fd = -1;

  ~Process() { end(); }

  void end() {
    if (fd >= 0) ::close(fd);
    if (child > 0) {
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    }
    fd = -1;
    child = -1;
  }

  void start() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      fail_run("serve", "chat template: {}", std::strerror(errno));
    }
    fd = ends[0];
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);  // a client's socket must not stay open
    // A group of its own: Ctrl-C in a terminal is for the server, which then finishes its requests.
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setpgroup(&attributes, 0);
    const std::string python = python_interpreter();
    const int error = spawn_python(child, kRenderChat, {}, actions, &attributes);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    ::close(ends[1]);
    if (error != 0) {
      child = -1;
      end();
      fail("serve", "chat template: rendering needs Python with jinja2; {}: {} (LAZY_PYTHON names another interpreter)",
           python, std::strerror(error));
    }
    const Json answer = ask(first, kStartSeconds);
    if (answer.contains("error")) {
      end();
      const auto error = answer["error"].get<std::string>();
      if (!answer.contains("missing")) fail("serve", "chat template: {}", error);
      fail("serve", "chat template: {} (Python: {}, LAZY_PYTHON names another interpreter)", error, python);
    }
  }

  // RunError, and the process ends, where no answer comes.
  Json ask(const Json& question, int seconds) {
    const auto end_at = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    std::string out = question.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n", in;
    size_t sent = 0;
    while (in.empty() || in.back() != '\n') {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end_at - std::chrono::steady_clock::now()).count();
      pollfd state{fd, static_cast<short>(sent < out.size() ? POLLIN | POLLOUT : POLLIN), 0};
      const int ready = left > 0 ? ::poll(&state, 1, static_cast<int>(left)) : 0;
      if (ready < 0 && errno == EINTR) continue;
      ssize_t n = ready;
      if (n > 0 && (state.revents & POLLOUT) != 0) {
        n = ::send(fd, out.data() + sent, out.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0) sent += static_cast<size_t>(n);
      }
      if (n > 0 && (state.revents & (POLLIN | POLLHUP)) != 0) {
        char piece[16384];
        n = ::recv(fd, piece, sizeof piece, MSG_DONTWAIT);
        if (n > 0) in.append(piece, static_cast<size_t>(n));
      }
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (n <= 0 || in.size() > kMaxAnswer) {
        end();
        fail_run("serve", "chat template: {}", ready == 0 ? "rendering took too long" : "the Python process has ended");
      }
    }
    const Json answer = Json::parse(in, nullptr, false);
    if (!answer.is_object()) {
      end();
      fail_run("serve", "chat template: the Python process answered with something else than JSON");
    }
    return answer;
  }
};

ChatTemplate::ChatTemplate(const std::string& source, const Json& variables) : process_(std::make_unique<Process>()) {
  process_->first = {{"template", source}, {"variables", variables}};
  process_->start();
}

ChatTemplate::~ChatTemplate() = default;

std::string ChatTemplate::render(const Json& messages, const Json& variables) {
  Json question{{"messages", messages}, {"tools", nullptr}, {"documents", nullptr}};
  question.update(variables);
  const std::scoped_lock lock(process_->mutex);
  if (process_->child < 0) process_->start();  // an earlier rendering has ended it
  const Json answer = process_->ask(question, kRenderSeconds);
  if (answer.contains("error")) fail("serve", "chat template: {}", answer["error"].get<std::string>());
  return answer.at("text").get<std::string>();
}

}  // namespace lazy::serve
