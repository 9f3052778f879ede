// Converts refusals of the engine to errors of OpenAI's API.
#pragma once
#include "serve/generation.h"
#include "serve/openai/error.h"

namespace lazy::serve {

// Throws ApiError unless the engine accepted the request. field: name of the field that makes a request too long.
inline void check_accepted(const GenerationService::Submission& submission, const char* field) {
  using Refusal = GenerationService::Refusal;
  switch (submission.refusal) {
    case Refusal::none:
      return;
    case Refusal::queue_full:
      throw ApiError(429, "the queue is full; try again later", "", "queue_full");
    case Refusal::too_long:
      throw ApiError(400, submission.message, field, "context_length_exceeded");
    case Refusal::stopping:
      throw ApiError(503, "the server is shutting down", "", "shutting_down");
    case Refusal::invalid:
      throw ApiError(400, submission.message, "", "invalid_value");
  }
}

}  // namespace lazy::serve
