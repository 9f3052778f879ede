#include "serve/openai/attention.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "serve/openai/fields.h"
#include "serve/openai/request.h"
#include "serve/openai/submission.h"

namespace lazy::serve {
using Json = nlohmann::ordered_json;

namespace {

// Rounds to four significant digits, so that small weights remain nonzero. A reported weight of zero therefore means
// that the computed weight is exactly zero.
Json rounded(float value) {
  if (std::isnan(value)) return {};
  return std::strtod(fmt::format("{:.4g}", value).c_str(), nullptr);
}

// Rounds to four decimals, for values such as 1 - (sum of the attention weights). For softmax this value is only
// rounding error, which is thereby rounded to zero.
Json share(float value) {
  if (std::isnan(value)) return {};
  const double places = std::round(static_cast<double>(value) * 1e4) / 1e4;
  return places == 0 ? 0.0 : places;
}

Json count(float value) { return std::isnan(value) ? Json() : Json(static_cast<int64_t>(value)); }

void check_fits(const ServedModel& model, const AttentionRequest& request) {
  if (!model.attention) {
    throw ApiError(400, fmt::format("the model \"{}\" does not have attention weights", model.id), "model",
                   "no_attention");
  }
  const AttentionService::Shape shape = model.attention->shape();
  const auto length = static_cast<int64_t>(request.tokens.size());
  if (length > shape.max_tokens) {
    throw ApiError(400, fmt::format("tokens: expected at most {}, found {}", shape.max_tokens, length), "tokens",
                   "context_length_exceeded");
  }
  for (const int64_t id : request.tokens) {
    if (id >= model.vocab_size) {
      wrong_field("tokens", fmt::format("token {} is outside the vocabulary of {} tokens", id, model.vocab_size));
    }
  }
  for (const HeadChoice& row : request.rows) {
    if (row.layer < shape.layers && row.head < shape.heads) continue;
    wrong_field("rows", fmt::format("[{}, {}]: the model has {} layers with {} heads each, both counted from 0",
                                    row.layer, row.head, shape.layers, shape.heads));
  }
  const int64_t numbers =
      3 * (length - request.first) * shape.layers * shape.heads + static_cast<int64_t>(request.rows.size()) * length;
  if (numbers > kMaxAttentionNumbers) {
    wrong_field("first", fmt::format("the response would have {} numbers, expected at most {}: request fewer tokens",
                                     numbers, kMaxAttentionNumbers));
  }
}

// `values` has the shape (queries, layers, heads).
template <typename Number>
Json nested(const std::vector<float>& values, const AttentionService::Shape& shape, const Number& number) {
  Json out = Json::array();
  const auto layers = static_cast<size_t>(shape.layers), heads = static_cast<size_t>(shape.heads);
  for (size_t at = 0; at < values.size();) {
    Json query = Json::array();
    for (size_t layer = 0; layer < layers; ++layer) {
      Json row = Json::array();
      for (size_t head = 0; head < heads; ++head) row.push_back(number(values[at++]));
      query.push_back(std::move(row));
    }
    out.push_back(std::move(query));
  }
  return out;
}

std::string answer(const ServedModel& model, const AttentionRequest& request, const AttentionReport& report) {
  const AttentionService::Shape shape = model.attention->shape();
  const auto or_null = [](int64_t index) { return index < 0 ? Json() : Json(index); };
  Json rows = Json::array();
  for (size_t n = 0; n < request.rows.size(); ++n) {
    Json weights = Json::array();
    for (const float weight : report.rows.at(n)) weights.push_back(rounded(weight));
    rows.push_back({{"layer", or_null(request.rows[n].layer)},
                    {"head", or_null(request.rows[n].head)},
                    {"weights", weights.empty() ? Json() : std::move(weights)}});
  }
  return Json{{"object", "attention"},
              {"model", model.id},
              {"count", request.tokens.size()},
              {"first", request.first},
              {"layers", shape.layers},
              {"heads", shape.heads},
              {"released", nested(report.released, shape, share)},
              {"sink", nested(report.sink, shape, share)},
              {"alive", nested(report.alive, shape, count)},
              {"rows", std::move(rows)}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

void start_attention(std::shared_ptr<const ServedModel> model, AttentionRequest request,
                     const std::shared_ptr<Exchange>& exchange, std::function<void(int)> on_done) {
  check_fits(*model, request);
  // State that is shared by the callbacks on the strand and the engine's job. Only the strand reads and writes it.
  struct AttentionCall {
    std::function<void(int)> on_done;
    void done(int status) {
      if (const auto callback = std::exchange(on_done, nullptr)) callback(status);
    }
  };
  const auto call = std::make_shared<AttentionCall>();
  const auto submission = model->attention->read(request, [call, model, request, exchange](AttentionResult result) {
    exchange->post([call, model, request, exchange, result = std::move(result)] {
      if (!call->on_done) return;  // the client has disconnected
      if (result.reason == FinishReason::stop) {
        exchange->respond({.body = answer(*model, request, result.report)});
        return call->done(200);
      }
      const ApiError error =
          result.reason == FinishReason::cancelled
              ? ApiError(503, "the request was cancelled: the server is shutting down", "", "cancelled")
              : ApiError(500, result.message, "", "attention_failed");
      exchange->respond(error.response());
      call->done(error.status());
    });
  });
  check_accepted(submission, "tokens");
  call->on_done = std::move(on_done);
  exchange->on_gone([call, model, exchange = std::weak_ptr(exchange), id = submission.id](Gone why) {
    model->attention->cancel(id);
    const auto open = exchange.lock();
    if (why == Gone::timeout && open) {
      open->respond(ApiError(504, "the response took longer than the server allows", "", "request_timeout").response());
    }
    call->done(why == Gone::timeout ? 504 : 499);
  });
}

}  // namespace lazy::serve
