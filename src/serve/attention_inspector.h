// Attention weights of a served model: the text is computed anew, on the engine's thread between two steps.
#pragma once
#include <cstdint>
#include <functional>

#include "serve/attention_service.h"
#include "serve/engine.h"

namespace lazy {

class LanguageModel;

// A pass of so many tokens holds up running texts for as long as four chunks of a prompt.
inline constexpr int64_t kMaxAttentionTokens = 1024;

class AttentionInspector final : public AttentionService {
 public:
  // `engine` is that of `model`; both must outlive this.
  AttentionInspector(Engine& engine, LanguageModel& model) : engine_(engine), model_(model) {}

  Shape shape() const override;
  GenerationService::Submission read(AttentionRequest request, std::function<void(AttentionResult)> done) override;
  void cancel(GenerationService::Id id) override { engine_.cancel(id); }

 private:
  Engine& engine_;
  LanguageModel& model_;
};

}  // namespace lazy
