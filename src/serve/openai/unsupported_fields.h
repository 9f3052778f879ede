// Request fields of other servers (OpenAI, vLLM, llama.cpp) that this server does not implement. Fields that would
// change the answer are refused; fields that cannot change the generated text are ignored.
#pragma once
#include <string_view>
#include <vector>

#include "serve/openai/fields.h"

namespace lazy::serve {

enum class Endpoint { completions = 1, chat = 2 };

struct UnsupportedField {
  std::string_view name;
  int endpoints;  // the endpoints with this field: a sum (bit mask) of values of Endpoint
  // A JSON array of the field's values that are accepted because they request the behavior that this server has. If it
  // is "", all values are accepted, because the field cannot change the generated text.
  std::string_view accepted;
  std::string_view advice = "";  // what the client can use instead
};

const std::vector<UnsupportedField>& unsupported_fields();

// Throws ApiError 400 with the field's name for the first unsupported field whose value is not accepted. null is
// treated as absent.
void refuse_unsupported_fields(Fields& fields, Endpoint endpoint);

}  // namespace lazy::serve
