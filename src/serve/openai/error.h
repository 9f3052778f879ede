// Errors in the format of OpenAI's API: {"error": {"message", "type", "param", "code"}}.
#pragma once
#include <string>

#include "core/error.h"
#include "serve/http/exchange.h"

namespace lazy::serve {

class ApiError : public Error {
 public:
  // param: name of the invalid field, or "". code: machine-readable error code.
  ApiError(int status, const std::string& message, std::string param = "", std::string code = "");
  int status() const { return status_; }
  const std::string& param() const { return param_; }
  const std::string& code() const { return code_; }
  std::string type() const;
  std::string body() const;  // the error as a JSON object
  HttpResponse response() const;

 private:
  int status_;
  std::string param_, code_;
};

}  // namespace lazy::serve
