// The routes of OpenAI's protocol, and those that lm-evaluation-harness and Prometheus ask for.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

#include "serve/http/exchange.h"
#include "serve/http/server.h"
#include "serve/openai/api_keys.h"
#include "serve/openai/metrics.h"
#include "serve/openai/request.h"
#include "serve/openai/response.h"
#include "serve/openai/served_model.h"

namespace lazy::serve {

class Api {
 public:
  // At least one model; the first one answers where a request names none and there is no other.
  Api(std::vector<ServedModel> models, ApiKeys keys);

  void handle(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);  // an HttpHandler
  void set_http_counters(std::function<HttpCounters()> counters) { http_counters_ = std::move(counters); }
  // From now on nothing new is begun: 503.
  void drain() { draining_ = true; }

 private:
  using Model = std::shared_ptr<const ServedModel>;
  struct Route;
  static const std::vector<Route>& routes();

  void dispatch(const Route& route, const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void respond(const std::shared_ptr<Exchange>& exchange, const std::string& name, const HttpResponse& response);
  void completions(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void chat(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void generate(const std::string& endpoint, Protocol protocol, Model model, GenerationFields fields, bool echo,
                std::vector<std::vector<int64_t>> prompts, std::vector<std::string> texts,
                const std::shared_ptr<Exchange>& exchange);
  void attention(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  HttpResponse page(const HttpRequest& request);
  HttpResponse models(const HttpRequest& request);
  HttpResponse model(const HttpRequest& request);
  HttpResponse tokenize(const HttpRequest& request);
  HttpResponse detokenize(const HttpRequest& request);
  HttpResponse tokenizer_info(const HttpRequest& request);
  HttpResponse health(const HttpRequest& request);
  HttpResponse version(const HttpRequest& request);
  HttpResponse metrics_text(const HttpRequest& request);

  Model find_model(const std::string& id) const;  // ApiError 404; "" is the only model
  std::vector<int64_t> encode_chat(const ServedModel& model, const ChatRequest& request) const;
  void note_unknown(const std::vector<std::string>& keys);

  std::vector<Model> models_;
  ApiKeys keys_;
  std::function<HttpCounters()> http_counters_;
  const std::shared_ptr<ServerMetrics> metrics_ = std::make_shared<ServerMetrics>();
  std::atomic<bool> draining_ = false;
  std::mutex mutex_;  // of noted_
  std::set<std::string> noted_;
};

}  // namespace lazy::serve
