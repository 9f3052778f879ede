// Errors as OpenAI's protocol reports them: {"error": {"message", "type", "param", "code"}}.
#pragma once
#include <string>

#include "core/error.h"
#include "serve/http/exchange.h"

namespace lazy::serve {

class ApiError : public Error {
 public:
  // `param`: the field at fault, or "". `code`: a word for programs.
  ApiError(int status, const std::string& message, std::string param = "", std::string code = "");
  int status() const { return status_; }
  const std::string& param() const { return param_; }
  const std::string& code() const { return code_; }
  std::string type() const;
  std::string body() const;  // the JSON object
  HttpResponse response() const;

 private:
  int status_;
  std::string param_, code_;
};

}  // namespace lazy::serve
