#include "serve/openai/error.h"

#include <nlohmann/json.hpp>

namespace lazy::serve {

ApiError::ApiError(int status, const std::string& message, std::string param, std::string code)
    : Error(message), status_(status), param_(std::move(param)), code_(std::move(code)) {}

std::string ApiError::type() const {
  switch (status_) {
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    default:
      return status_ < 500 ? "invalid_request_error" : "server_error";
  }
}

std::string ApiError::body() const {
  nlohmann::ordered_json error;
  error["message"] = what();
  error["type"] = type();
  error["param"] = param_.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(param_);
  error["code"] = code_.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(code_);
  return nlohmann::ordered_json{{"error", std::move(error)}}.dump(-1, ' ', false,
                                                                  nlohmann::json::error_handler_t::replace);
}

HttpResponse ApiError::response() const {
  HttpResponse out{.status = status_, .body = body()};
  if (status_ == 429 || status_ == 503) out.headers.emplace_back("Retry-After", "1");
  if (status_ == 401) out.headers.emplace_back("WWW-Authenticate", "Bearer");
  return out;
}

}  // namespace lazy::serve
