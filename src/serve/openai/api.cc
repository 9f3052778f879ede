#include "serve/openai/api.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>

#include "core/log.h"
#include "core/text.h"
#include "serve/http/request_head.h"
#include "serve/openai/attention.h"
#include "serve/openai/generation_task.h"
#include "serve/openai/logprobs.h"
#include "serve/page/page.h"

namespace lazy::serve {
using Json = nlohmann::ordered_json;

struct Api::Route {
  std::string_view method, path;  // "/x/" matches all paths that begin with it; any other path matches only itself
  std::string_view name;          // name of the endpoint in metrics
  HttpResponse (Api::*answer)(const HttpRequest&) = nullptr;
  Start (Api::*start)(const HttpRequest&) = nullptr;
  bool open = false;                 // accessible without an API key
  bool has_text = start != nullptr;  // the endpoint encodes or decodes text, so it runs on a thread of the pool
};

const std::vector<Api::Route>& Api::routes() {
  static const std::vector<Route> all = {
      {"POST", "/v1/completions", "/v1/completions", nullptr, &Api::completions},
      {"POST", "/v1/chat/completions", "/v1/chat/completions", nullptr, &Api::chat},
      {"POST", "/v1/attention", "/v1/attention", nullptr, &Api::attention},
      {"GET", "/v1/models", "/v1/models", &Api::models},
      {"GET", "/v1/models/", "/v1/models/{id}", &Api::model},
      {"POST", "/tokenize", "/tokenize", &Api::tokenize, nullptr, false, true},
      {"POST", "/detokenize", "/detokenize", &Api::detokenize, nullptr, false, true},
      {"GET", "/tokenizer_info", "/tokenizer_info", &Api::tokenizer_info},
      {"GET", "/health", "/health", &Api::health, nullptr, true},
      {"GET", "/", "/", &Api::page, nullptr, true},
      {"GET", "/version", "/version", &Api::version},
      {"GET", "/metrics", "/metrics", &Api::metrics_text},
  };
  return all;
}

namespace {

HttpResponse json_response(const Json& json) {
  return {.body = json.dump(-1, ' ', false, Json::error_handler_t::replace)};
}

std::string random_id(const char* prefix) {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return fmt::format("{}-{:016x}{:016x}", prefix, random(), random());
}

uint64_t random_seed() {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return random();
}

constexpr int kReaders = 4;  // number of threads that encode text

int64_t now() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Json model_json(const ServedModel& model) {
  Json out = {{"id", model.id},
              {"object", "model"},
              {"created", model.created},
              {"owned_by", "lazy"},
              {"max_model_len", model.engine->max_request_tokens()}};
  if (model.attention) {
    const AttentionService::Shape shape = model.attention->shape();
    out["attention"] = {{"layers", shape.layers}, {"heads", shape.heads}, {"max_tokens", shape.max_tokens}};
  }
  return out;
}

// The methods of RFC 9110 and RFC 5789. Requests with a method that is not in this list get status 501.
bool is_known_method(std::string_view method) {
  static const std::set<std::string_view> known{"GET",     "HEAD",    "POST",  "PUT",  "DELETE",
                                                "CONNECT", "OPTIONS", "TRACE", "PATCH"};
  return known.contains(method);
}

std::string allow_header(std::string_view method) {
  return method == "GET" ? "GET, HEAD, OPTIONS" : std::string(method) + ", OPTIONS";
}

void check_ids(const std::vector<int64_t>& ids, int64_t size, const char* field) {
  for (const int64_t id : ids) {
    if (id >= size)
      wrong_field(field, fmt::format("token {} is outside the model's vocabulary of {} tokens", id, size));
  }
}

}  // namespace

Api::Api(std::vector<ServedModel> models, ApiKeys keys)
    : keys_(std::move(keys)), readers_(std::make_unique<boost::asio::thread_pool>(kReaders)) {
  for (ServedModel& model : models) models_.push_back(std::make_shared<const ServedModel>(std::move(model)));
}
Api::~Api() = default;

void Api::handle(HttpRequest request, const std::shared_ptr<Exchange>& exchange) {
  const Route* fitting = nullptr;
  std::string_view allowed;
  for (const Route& route : routes()) {
    const bool below = route.path.size() > 1 && route.path.ends_with('/');
    const bool fits = below ? request.path.starts_with(route.path) : request.path == route.path;
    if (!fits) continue;
    allowed = route.method;
    if (request.method == route.method || (request.method == "HEAD" && route.method == "GET")) fitting = &route;
  }
  if (request.method == "OPTIONS" && (!allowed.empty() || request.path == "*")) {
    // A CORS preflight needs no API key, because browsers send none. HttpServer adds the CORS headers.
    const std::string methods = allowed.empty() ? "GET, HEAD, POST, OPTIONS" : allow_header(allowed);
    return respond(exchange, "other", {.status = 204, .headers = {{"Allow", methods}}});
  }
  try {
    if (!is_known_method(request.method)) {
      throw ApiError(501, "the request's method is not supported", "", "unknown_method");
    }
    // The key is checked first, so that clients without a valid key cannot find out which paths exist.
    if (!(fitting && fitting->open) && !keys_.accepts(request.authorization)) {
      throw ApiError(401, "a valid API key is required (header Authorization: Bearer KEY)", "", "invalid_api_key");
    }
    if (!fitting && allowed.empty()) {
      throw ApiError(404, "unknown path: " + to_valid_utf8(request.path.substr(0, 200)), "", "not_found");
    }
    if (!fitting) {
      HttpResponse response =
          ApiError(405, fmt::format("expected the method {}", allowed), "", "method_not_allowed").response();
      response.headers.emplace_back("Allow", allow_header(allowed));
      return respond(exchange, "other", response);
    }
  } catch (const ApiError& error) {
    return respond(exchange, fitting ? std::string(fitting->name) : "other", error.response());
  }
  if (!fitting->has_text) return finish(*fitting, read(*fitting, request), exchange);
  boost::asio::post(*readers_, [this, fitting, request = std::move(request), exchange] {
    exchange->post(
        [this, fitting, outcome = read(*fitting, request), exchange] { finish(*fitting, outcome, exchange); });
  });
}

// The response is counted in the metrics before it is sent, so that a client that has received it finds it in /metrics.
void Api::respond(const std::shared_ptr<Exchange>& exchange, const std::string& name, const HttpResponse& response) {
  metrics_->count(name, response.status);
  exchange->respond(response);
}

// Runs `work`. Returns the error response if it throws, otherwise nullopt.
template <typename Work>
static std::optional<HttpResponse> failure(std::string_view endpoint, const Work& work) {
  try {
    work();
    return std::nullopt;
  } catch (const ApiError& error) {
    return error.response();
  } catch (const RunError& error) {
    log::warn("serve: {}: {}", endpoint, error.what());
    return ApiError(500, error.what(), "", "internal_error").response();
  } catch (const Error& error) {
    return ApiError(400, error.what(), "", "invalid_value").response();
  } catch (const std::exception& error) {
    log::warn("serve: {}: {}", endpoint, error.what());
    return ApiError(500, "internal error", "", "internal_error").response();
  }
}

// May be called from any thread.
std::variant<HttpResponse, Api::Start> Api::read(const Route& route, const HttpRequest& request) {
  std::variant<HttpResponse, Start> outcome;
  const auto failed = failure(route.name, [&] {
    if (!route.start) {
      outcome = (this->*route.answer)(request);
    } else if (draining_) {
      throw ApiError(503, "the server is shutting down", "", "shutting_down");
    } else {
      outcome = (this->*route.start)(request);
    }
  });
  return failed ? *failed : outcome;
}

void Api::finish(const Route& route, const std::variant<HttpResponse, Start>& outcome,
                 const std::shared_ptr<Exchange>& exchange) {
  const std::string name(route.name);
  if (const auto* response = std::get_if<HttpResponse>(&outcome)) return respond(exchange, name, *response);
  if (const auto failed = failure(name, [&] { std::get<Start>(outcome)(exchange); })) respond(exchange, name, *failed);
}

Api::Model Api::find_model(const std::string& id) const {
  if (id.empty() && models_.size() == 1) return models_.front();
  if (id.empty()) throw ApiError(400, "model is required because several models are served", "model", "missing_field");
  for (const Model& model : models_) {
    if (model->id == id) return model;
  }
  std::vector<std::string> names;
  for (const Model& model : models_) names.push_back('"' + model->id + '"');
  throw ApiError(
      404, fmt::format("the model \"{}\" is not served; served models: {}", id.substr(0, 200), fmt::join(names, ", ")),
      "model", "model_not_found");
}

void Api::note_unknown(const std::vector<std::string>& keys) {
  std::vector<std::string> fresh;
  {
    const std::scoped_lock lock(mutex_);
    for (const std::string& key : keys) {
      if (noted_.size() < 100 && noted_.insert(key).second) fresh.push_back(escape_control(key.substr(0, 60)));
    }
  }
  if (!fresh.empty())
    log::info("serve: ignoring request fields that are not supported: {} (reported once)", fmt::join(fresh, ", "));
}

Api::Start Api::completions(const HttpRequest& request) {
  std::vector<std::string> unknown;
  CompletionRequest fields = parse_completion(parse_body(request.body), unknown);
  note_unknown(unknown);
  const Model model = find_model(fields.model);
  // A client that scores a text (echo with logprobs) counts the tokens of its context without special tokens and uses
  // this count as an index into the returned arrays. Special tokens are therefore not added by default.
  const bool scoring = fields.echo && fields.logprobs >= 0;
  const bool special = fields.add_special_tokens.value_or(!scoring);
  std::vector<std::vector<int64_t>> prompts;
  std::vector<std::string> texts;
  for (Prompt& prompt : fields.prompts) {
    if (const auto* text = std::get_if<std::string>(&prompt)) {
      if (const int64_t most = model->engine->max_request_tokens(); model->surely_longer(*text, most)) {
        throw ApiError(
            400,
            fmt::format("prompt: a text of {} bytes exceeds the limit of {} tokens per request", text->size(), most),
            "prompt", "context_length_exceeded");
      }
      std::vector<int64_t> ids = model->encode(*text, special || text->empty());
      if (ids.empty() && model->tokenizer->bos_id()) ids.push_back(*model->tokenizer->bos_id());
      if (ids.empty()) refuse_field("prompt", "prompt is empty, and the tokenizer has no BOS token to use instead");
      check_ids(ids, model->vocab_size, "prompt");
      prompts.push_back(std::move(ids));
      if (fields.echo) texts.push_back(*text);
    } else {
      auto& ids = std::get<std::vector<int64_t>>(prompt);
      check_ids(ids, model->vocab_size, "prompt");
      if (fields.echo) {
        std::vector<int64_t> known;  // ids that the tokenizer can decode; the model's vocabulary may be larger
        for (const int64_t id : ids) {
          if (id < model->tokenizer->vocab_size()) known.push_back(id);
        }
        texts.push_back(model->decode(known));
      }
      prompts.push_back(std::move(ids));
    }
  }
  if (!fields.echo) texts.resize(prompts.size());
  const bool echo = fields.echo;
  return generate("/v1/completions", Protocol::completions, model, std::move(fields), echo, std::move(prompts),
                  std::move(texts));
}

std::vector<int64_t> Api::encode_chat(const ServedModel& model, const ChatRequest& request) const {
  // These are server-side errors: the client cannot fix the server's Python installation or the model folder's
  // template.
  if (!model.chat && !model.chat_problem.empty()) {
    log::warn("serve: a chat completion was refused: {}: {}", model.id, model.chat_problem);
    throw ApiError(500, fmt::format("the model \"{}\": {}", model.id, model.chat_problem), "", "chat_template_error");
  }
  if (!model.chat) {
    throw ApiError(400,
                   fmt::format("the model \"{}\" has no chat template (chat_template in tokenizer_config.json, or "
                               "chat_template.jinja): use /v1/completions",
                               model.id),
                   "messages", "no_chat_template");
  }
  try {
    return model.encode_chat(request.messages, request.variables);
  } catch (const RunError&) {
    throw;
  } catch (const Error& error) {
    throw ApiError(400, error.what(), "messages", "chat_template_error");
  }
}

Api::Start Api::chat(const HttpRequest& request) {
  std::vector<std::string> unknown;
  ChatRequest fields = parse_chat(parse_body(request.body), request.body, unknown);
  note_unknown(unknown);
  const Model model = find_model(fields.model);
  std::vector<int64_t> prompt = encode_chat(*model, fields);
  if (prompt.empty()) wrong_field("messages", "the chat template rendered an empty text");
  check_ids(prompt, model->vocab_size, "messages");
  // The default is the remaining context, or 1 if no context remains, so that generate() refuses the prompt.
  if (!fields.max_tokens) {
    const int64_t rest = model->engine->max_request_tokens() - static_cast<int64_t>(prompt.size());
    fields.max_tokens = std::max<int64_t>(rest, 1);
  }
  return generate("/v1/chat/completions", Protocol::chat, model, std::move(fields), false, {std::move(prompt)}, {""});
}

Api::Start Api::generate(const std::string& endpoint, Protocol protocol, Model model, GenerationFields fields,
                         bool echo, std::vector<std::vector<int64_t>> prompts, std::vector<std::string> texts) {
  const int64_t most = model->engine->max_request_tokens();
  const int64_t sequences = static_cast<int64_t>(prompts.size()) * fields.n, queued = model->engine->max_waiting();
  if (sequences > queued) {
    wrong_field("n",
                fmt::format("{} prompts with n = {} are {} sequences; the server queues at most {} (--max-waiting)",
                            prompts.size(), fields.n, sequences, queued));
  }
  GenerationJob job;
  job.head = {protocol, random_id(protocol == Protocol::chat ? "chatcmpl" : "cmpl"), model->id, now()};
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto length = static_cast<int64_t>(prompts[i].size());
    if (length > most || *fields.max_tokens > most - length) {
      const char* field = protocol == Protocol::chat ? "messages" : "prompt";
      const std::string rest = length >= most ? "no token is left for the generated text"
                                              : fmt::format("max_tokens is {}, but only {} tokens are left",
                                                            *fields.max_tokens, most - length);
      throw ApiError(400,
                     fmt::format("{}: the prompt has {} tokens and the limit is {} tokens per request; {}", field,
                                 length, most, rest),
                     field, "context_length_exceeded");
    }
    job.prompts.push_back({std::move(prompts[i]), std::move(texts[i])});
  }
  check_ids(fields.stop_token_ids, model->vocab_size, "stop_token_ids");
  for (const auto& [id, bias] : fields.sampling.logit_bias) check_ids({id}, model->vocab_size, "logit_bias");
  fields.sampling.seed = fields.seed.value_or(random_seed());
  fields.sampling.validate("serve");
  job.model = std::move(model);
  job.fields = std::move(fields);
  job.echo = echo;
  return [job = std::move(job), metrics = metrics_, endpoint](const std::shared_ptr<Exchange>& exchange) {
    const auto count = [metrics, endpoint](int status) { metrics->count(endpoint, status); };
    std::make_shared<GenerationTask>(job, exchange, count)->start();
  };
}

Api::Start Api::attention(const HttpRequest& request) {
  std::vector<std::string> unknown;
  AttentionFields fields = parse_attention(parse_body(request.body), unknown);
  note_unknown(unknown);
  return [model = find_model(fields.model), work = std::move(fields.request),
          metrics = metrics_](const std::shared_ptr<Exchange>& exchange) {
    start_attention(model, work, exchange, [metrics](int status) { metrics->count("/v1/attention", status); });
  };
}

HttpResponse Api::page(const HttpRequest&) { return page_response(); }

HttpResponse Api::models(const HttpRequest&) {
  Json list = Json::array();
  for (const Model& model : models_) list.push_back(model_json(*model));
  return json_response({{"object", "list"}, {"data", std::move(list)}});
}

HttpResponse Api::model(const HttpRequest& request) {
  return json_response(model_json(*find_model(percent_decoded(request.path.substr(sizeof("/v1/models/") - 1)))));
}

HttpResponse Api::tokenize(const HttpRequest& request) {
  const auto body = parse_body(request.body);
  Fields fields(body);
  const Model model = find_model(fields.string("model", ""));
  const std::string prompt = fields.required_string("prompt");
  const auto ids = model->encode(prompt, fields.boolean("add_special_tokens", true));
  Json out{{"count", ids.size()}, {"max_model_len", model->engine->max_request_tokens()}, {"tokens", ids}};
  if (fields.boolean("return_token_strs", false)) {
    Json texts = Json::array();
    for (const int64_t id : ids) texts.push_back(token_text(*model->tokenizer, id));
    out["token_strs"] = std::move(texts);
  }
  note_unknown(fields.unknown());
  return json_response(out);
}

HttpResponse Api::detokenize(const HttpRequest& request) {
  const auto body = parse_body(request.body);
  Fields fields(body);
  const Model model = find_model(fields.string("model", ""));
  if (!fields.find("tokens")) throw ApiError(400, "tokens is required", "tokens", "missing_field");
  const std::vector<int64_t> ids = fields.ids("tokens");
  check_ids(ids, model->tokenizer->vocab_size(), "tokens");
  note_unknown(fields.unknown());
  return json_response({{"prompt", model->decode(ids)}});
}

HttpResponse Api::tokenizer_info(const HttpRequest& request) {
  const Model model = find_model(query_value(request.query, "model").value_or(""));
  const TokenTable& tokens = model->tokenizer->tokens();
  const auto text = [&](const char* key) {
    const auto found = tokens.texts.find(key);
    return found == tokens.texts.end() ? Json() : Json(found->second);
  };
  const auto id_or_null = [](const std::optional<int32_t>& token) { return token ? Json(*token) : Json(); };
  return json_response(
      {{"tokenizer_class", tokens.tokenizer_class.empty() ? model->tokenizer->kind() : tokens.tokenizer_class},
       {"vocab_size", model->tokenizer->vocab_size()},
       {"bos_token", text("bos_token")},
       {"eos_token", text("eos_token")},
       {"pad_token", text("pad_token")},
       {"unk_token", text("unk_token")},
       {"bos_token_id", id_or_null(tokens.bos)},
       {"eos_token_id", id_or_null(tokens.eos)},
       {"chat_template", model->chat_template.empty() ? Json() : Json(model->chat_template)}});
}

HttpResponse Api::health(const HttpRequest&) {
  if (draining_) return {.status = 503, .body = R"({"status":"shutting down"})"};
  Json body{{"status", "ok"}};
  for (const Model& model : models_) {
    if (!model->chat_problem.empty()) body["chat_unavailable"][model->id] = model->chat_problem;
  }
  return json_response(body);
}

HttpResponse Api::version(const HttpRequest&) { return json_response({{"version", LAZY_VERSION}}); }

HttpResponse Api::metrics_text(const HttpRequest&) {
  std::vector<ModelSnapshot> models;
  for (const Model& model : models_) {
    models.push_back({model->id, model->engine->metrics(), model->metrics.get(), !model->chat_problem.empty()});
  }

  return {.body = prometheus_text(*metrics_, http_counters_ ? http_counters_() : HttpCounters{}, models),
          .content_type = "text/plain; version=0.0.4; charset=utf-8"};
}

}  // namespace lazy::serve
