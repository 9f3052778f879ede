// `lazy serve`: an HTTP server with OpenAI's API for one or several model folders.
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <list>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>

#include "command.h"
#include "model_path.h"
#include "served_folder.h"
#include "server_signals.h"

#include "core/clock.h"
#include "core/error.h"
#include "core/log.h"
#include "core/stop.h"
#include "serve/http/origin.h"
#include "serve/http/server.h"
#include "serve/openai/api.h"

namespace lazy {
namespace {

constexpr std::chrono::milliseconds kPoll(50);  // interval for checking signals
constexpr double kCancelledSeconds = 1;         // time in seconds to send the error events of cancelled streams

struct ServeArguments {
  std::vector<std::string> models, allowed_origins;
  std::string host = "127.0.0.1", api_key_file, access_log;
  bool download = false;
  int port = 8080, threads = 2;
  double max_body_mb = 16, request_seconds = 600, idle_seconds = 75;
  serve::HttpLimits limits;
  cli::ServingOptions serving;
};

// Parses "NAME=FOLDER". For a folder without NAME=, the path as given is the name.
std::pair<std::string, std::string> name_and_folder(const std::string& argument) {
  const size_t at = argument.find('=');
  std::string folder = at == std::string::npos ? argument : argument.substr(at + 1);
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  return {at == std::string::npos ? folder : argument.substr(0, at), folder};
}

struct NamedFolder {
  std::string name, path;
};

// Checks the names and finds the folders of all models before the first one is loaded.
std::vector<NamedFolder> find_models(const ServeArguments& options) {
  std::vector<std::pair<std::string, std::string>> given;
  for (const std::string& argument : options.models) {
    given.push_back(name_and_folder(argument));
    const auto& [name, folder] = given.back();
    if (name.empty() || folder.empty()) fail("serve", "{}: expected FOLDER or NAME=FOLDER", argument);
    for (size_t i = 0; i + 1 < given.size(); ++i) {
      if (given[i].first == name) fail("serve", "two models have the name {}; NAME=FOLDER sets a name", name);
    }
  }
  std::vector<NamedFolder> models;
  for (const auto& [name, folder] : given) {
    models.push_back({name, cli::resolve_model_folder("serve", folder, options.download)});
  }
  return models;
}

serve::ServedModel load(const NamedFolder& model, const cli::ServingOptions& options,
                        std::list<cli::ServedFolder>& loaded) {
  const cli::ServedFolder& folder = loaded.emplace_back("serve", model.path, model.name, options);
  log::info("{}: {}", model.name, folder.limits());
  serve::ServedModel served = folder.model;
  if (!served.chat_problem.empty()) {  // the model is served anyway, because completions need no chat template
    log::warn("{}: {}; chat completions of this model are refused", model.path, served.chat_problem);
  }
  return served;
}

// While this object exists, a signal ends the process immediately: loading a model cannot be interrupted, and no
// request has been accepted yet.
class EndOnSignal {
 public:
  EndOnSignal() : thread_(watch) {}

 private:
  static void watch(const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any changed;
    std::unique_lock lock(mutex);
    const auto received = [] { return cli::drain_signal() != 0; };
    while (!changed.wait_for(lock, stop, kPoll, received)) {
      if (stop.stop_requested()) return;
    }
    log::info("received SIG{} while models are being loaded: exiting", cli::signal_name(cli::drain_signal()));
    std::_Exit(0);  // skips destructors, because other threads may still be loading a model
  }
  std::jthread thread_;
};

// Waits until the running requests end, or cancels them after a second signal. `poll` is called while waiting.
void drain(serve::HttpServer& server, serve::Api& api, std::list<cli::ServedFolder>& models, double write_seconds,
           const std::function<void()>& poll) {
  api.drain();
  server.drain();
  std::atomic<bool> drained = false;
  std::thread engines([&] {
    for (cli::ServedFolder& model : models) model.engine->drain();
    drained = true;
  });
  bool cancelled = false;
  while (!drained) {
    poll();
    if (cli::end_signal() != 0 && !std::exchange(cancelled, true)) {
      for (cli::ServedFolder& model : models) model.engine->abandon();
    }
    std::this_thread::sleep_for(kPoll);
  }
  engines.join();
  // Wait for the last bytes of the responses, as long as clients read them.
  const auto begin = Clock::now();
  while (!server.wait_for_answers(0.05) &&
         seconds_since(begin) < (cli::end_signal() != 0 ? kCancelledSeconds : write_seconds)) {
    poll();
  }
  const int64_t unanswered = server.unanswered();
  server.stop();
  if (const int signal = cli::end_signal()) {
    throw Interrupted(
        fmt::format("serve: a second signal (SIG{}) cancelled the running requests", cli::signal_name(signal)), signal);
  }
  if (unanswered > 0) {
    log::warn("drained; {} of the answers were not read completely by their clients", unanswered);
  } else {
    log::info("drained; all requests have been answered");
  }
}

void run(ServeArguments options) {
  options.limits.max_body_bytes = static_cast<int64_t>(options.max_body_mb * (1 << 20));
  options.limits.request = options.request_seconds;
  options.limits.idle = options.idle_seconds;
  serve::ApiKeys keys;
  if (!options.api_key_file.empty()) keys = serve::ApiKeys::from_file(options.api_key_file);
  for (const std::string& origin : options.allowed_origins) {
    if (origin == "*" || serve::is_origin(origin)) continue;
    fail("serve",
         "--allowed-origins: expected SCHEME://HOST or SCHEME://HOST:PORT as browsers send it (lower case, no path and "
         "no slash at the end, no default port), such as https://example.org, or *, found '{}'",
         origin);
  }
  cli::install_server_signals(!options.access_log.empty() && options.access_log != "-");

  std::shared_ptr<serve::AccessLog> access_log;
  if (!options.access_log.empty()) access_log = std::make_shared<serve::AccessLog>(options.access_log);

  std::list<cli::ServedFolder> loaded;
  std::unique_ptr<serve::Api> api;
  std::atomic<serve::Api*> ready = nullptr;
  // The server listens before the models are loaded, so that an address in use is reported without delay. Until the
  // models are loaded, every response has status 503.
  serve::HttpServer server(
      options.host, options.port, options.threads, options.limits,
      [&ready](serve::HttpRequest request, std::shared_ptr<serve::Exchange> exchange) {
        if (serve::Api* found = ready) {
          found->handle(std::move(request), exchange);
        } else {
          exchange->respond(serve::ApiError(503, "the models are being loaded", "", "loading").response());
        }
      },
      options.allowed_origins, access_log);
  if (!server.is_local() && !keys.required()) {
    log::warn("serve: {} accepts requests from other machines without an API key (--api-key-file sets keys)",
              server.address());
  }
  std::vector<serve::ServedModel> models;
  {
    const EndOnSignal end_on_signal;
    for (const NamedFolder& folder : find_models(options)) models.push_back(load(folder, options.serving, loaded));
  }
  api = std::make_unique<serve::Api>(std::move(models), std::move(keys));
  api->set_http_counters([&server] { return server.counters(); });
  ready = api.get();
  fmt::print("listening at {}\n", server.address());
  std::fflush(stdout);

  const auto reopen_log = [&] {
    if (cli::take_reopen_request()) access_log->reopen();
  };
  while (cli::drain_signal() == 0) {
    reopen_log();
    std::this_thread::sleep_for(kPoll);
  }
  cli::begin_drain();
  const int64_t unanswered = server.unanswered();
  log::info(
      "received SIG{}: draining; waiting for {} request{}, new requests are rejected, and a second signal cancels the "
      "running ones",
      cli::signal_name(cli::drain_signal()), unanswered, unanswered == 1 ? "" : "s");
  drain(server, *api, loaded, options.limits.write, reopen_log);
}

}  // namespace

LAZY_COMMAND(serve, "Serve models over HTTP with an OpenAI-compatible API", [](CLI::App& command) {
  auto o = std::make_shared<ServeArguments>();
  command
      .add_option("models", o->models,
                  "Model folders or run folders. NAME=FOLDER sets the name of the model (default: the path)")
      ->required();
  cli::add_download_option(command, o->download);
  command
      .add_option("--host", o->host,
                  "Address to listen on; 0.0.0.0: all IPv4 addresses of this machine (also set API keys)")
      ->capture_default_str();
  command.add_option("--port", o->port, "Port to listen on; 0 picks a free one")
      ->capture_default_str()
      ->check(CLI::Range(0, 65535));
  command.add_option("--api-key-file", o->api_key_file, "File of accepted API keys, one per line")
      ->check(CLI::ExistingFile);
  cli::add_repeated_option(
      command, "--allowed-origins", o->allowed_origins,
      "Origin whose web pages may use the server, such as https://example.org (CORS); * allows all");
  command.add_option(
      "--access-log", o->access_log,
      "Append one line per request to this file (- for standard error), without bodies and keys; SIGHUP reopens the "
      "file");
  const std::string memory = "Memory and batch", network = "Network";
  cli::add_serving_options(command, o->serving, memory);
  command.add_option("--max-running", o->serving.engine.max_running, "Maximum number of sequences in a model's batch")
      ->capture_default_str()
      ->check(cli::kPositive)
      ->group(memory);
  command
      .add_option("--max-waiting", o->serving.engine.max_waiting,
                  "Maximum number of queued sequences per model; further requests get HTTP 429")
      ->capture_default_str()
      ->check(cli::kPositive)
      ->group(memory);
  command
      .add_option("--io-threads", o->threads,
                  "Threads for connections; `lazy --threads N serve ...` sets the compute threads")
      ->capture_default_str()
      ->check(CLI::Range(1, 256))
      ->group(network);
  command.add_option("--max-body-mb", o->max_body_mb, "Maximum size of a request in MiB; larger ones get HTTP 413")
      ->capture_default_str()
      ->check(CLI::Range(0.001, 4096.0))
      ->group(network);
  command
      .add_option("--max-connections", o->limits.max_connections,
                  "Maximum number of open connections; further ones get HTTP 503")
      ->capture_default_str()
      ->check(cli::kPositive)
      ->group(network);
  command
      .add_option("--request-seconds", o->request_seconds,
                  "Maximum time for a response; a slower request gets HTTP 504, or an error event in its stream")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 1e6))
      ->group(network);
  command.add_option("--idle-seconds", o->idle_seconds, "Maximum idle time of a connection between two requests")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 1e6))
      ->group(network);
  command.footer(
      "Examples:\n"
      "  lazy serve runs/lazy\n"
      "  lazy serve lazy=runs/lazy/model softmax=runs/softmax/model --port 8000 --cache-gib 8\n"
      "  lazy serve runs/lazy --host 0.0.0.0 --api-key-file keys.txt\n"
      "  curl http://127.0.0.1:8080/v1/completions -d '{\"prompt\": \"Once upon a time\", \"max_tokens\": 40}'");
  command.callback([o] {
    cli::share_cores(cli::kServingSpins);
    run(*o);
  });
});

}  // namespace lazy
