// Routes of OpenAI's HTTP API, and the additional routes that lm-evaluation-harness and Prometheus use.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "serve/http/exchange.h"
#include "serve/http/server.h"
#include "serve/openai/api_keys.h"
#include "serve/openai/metrics.h"
#include "serve/openai/request.h"
#include "serve/openai/response.h"
#include "serve/openai/served_model.h"

namespace boost::asio {
class thread_pool;
}

namespace lazy::serve {

class Api {
 public:
  // At least one model is required. A request may omit the model if exactly one model is served.
  Api(std::vector<ServedModel> models, ApiKeys keys);
  ~Api();

  // Implements HttpHandler. A thread pool parses and tokenizes requests that contain text, so that long texts do not
  // delay other connections.
  void handle(HttpRequest request, const std::shared_ptr<Exchange>& exchange);
  void set_http_counters(std::function<HttpCounters()> counters) { http_counters_ = std::move(counters); }
  // After this call, new generation requests are refused with status 503.
  void drain() { draining_ = true; }

 private:
  using Model = std::shared_ptr<const ServedModel>;
  // Starts the work of a request on the connection's strand. May throw ApiError.
  using Start = std::function<void(const std::shared_ptr<Exchange>& exchange)>;
  struct Route;
  static const std::vector<Route>& routes();

  std::variant<HttpResponse, Start> read(const Route& route, const HttpRequest& request);
  void finish(const Route& route, const std::variant<HttpResponse, Start>& outcome,
              const std::shared_ptr<Exchange>& exchange);
  void respond(const std::shared_ptr<Exchange>& exchange, const std::string& name, const HttpResponse& response);
  Start completions(const HttpRequest& request);
  Start chat(const HttpRequest& request);
  Start generate(const std::string& endpoint, Protocol protocol, Model model, GenerationFields fields, bool echo,
                 std::vector<std::vector<int64_t>> prompts, std::vector<std::string> texts);
  Start attention(const HttpRequest& request);
  HttpResponse page(const HttpRequest& request);
  HttpResponse models(const HttpRequest& request);
  HttpResponse model(const HttpRequest& request);
  HttpResponse tokenize(const HttpRequest& request);
  HttpResponse detokenize(const HttpRequest& request);
  HttpResponse tokenizer_info(const HttpRequest& request);
  HttpResponse health(const HttpRequest& request);
  HttpResponse version(const HttpRequest& request);
  HttpResponse metrics_text(const HttpRequest& request);

  Model find_model(const std::string& id) const;  // throws ApiError 404 if unknown; "" selects the only model
  std::vector<int64_t> encode_chat(const ServedModel& model, const ChatRequest& request) const;
  void note_unknown(const std::vector<std::string>& keys);

  std::vector<Model> models_;
  ApiKeys keys_;
  std::function<HttpCounters()> http_counters_;
  const std::shared_ptr<ServerMetrics> metrics_ = std::make_shared<ServerMetrics>();
  std::atomic<bool> draining_ = false;
  std::mutex mutex_;  // protects noted_
  std::set<std::string> noted_;
  const std::unique_ptr<boost::asio::thread_pool> readers_;  // declared last because its threads use the other members
};

}  // namespace lazy::serve
