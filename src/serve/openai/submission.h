// A refusal of the engine as the protocol's error.
#pragma once
#include "serve/generation.h"
#include "serve/openai/error.h"

namespace lazy::serve {

// ApiError unless the engine took it. `field`: what makes a request too long.
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
