// Computes the attention weights of a token sequence with the served model. The forward pass recomputes the whole
// sequence on the engine's thread, between two engine steps.
#pragma once
#include <cstdint>
#include <functional>

#include "serve/attention_service.h"
#include "serve/engine.h"

namespace lazy {

class LanguageModel;

// Maximum number of tokens per attention request. While the forward pass of such a request runs, no other request can
// generate tokens. A pass over 1024 tokens takes about as long as four prompt chunks (EngineOptions::chunk, 256 tokens
// by default).
inline constexpr int64_t kMaxAttentionTokens = 1024;

class AttentionInspector final : public AttentionService {
 public:
  // `engine` must be the engine of `model`. Both must outlive this object.
  AttentionInspector(Engine& engine, LanguageModel& model) : engine_(engine), model_(model) {}

  Shape shape() const override;
  GenerationService::Submission read(AttentionRequest request, std::function<void(AttentionResult)> done) override;
  void cancel(GenerationService::Id id) override { engine_.cancel(id); }

 private:
  Engine& engine_;
  LanguageModel& model_;
};

}  // namespace lazy
