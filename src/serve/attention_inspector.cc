#include "serve/attention_inspector.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "core/log.h"
#include "sinks/token_attention.h"

namespace lazy {

namespace {

std::vector<float> numbers(const at::Tensor& tensor) {
  const at::Tensor values = tensor.to(at::kCPU, at::kFloat).contiguous();
  return {values.const_data_ptr<float>(), values.const_data_ptr<float>() + values.numel()};
}

AttentionReport report(LanguageModel& model, const AttentionRequest& request) {
  sinks::TokenAttention found =
      sinks::token_attention(model, at::tensor(request.tokens, at::kLong), request.first, request.rows.empty());
  AttentionReport out;
  out.sink = numbers(found.statistics[0]);
  out.released = numbers(found.statistics[1]);
  out.alive = numbers(found.statistics[2]);
  for (const HeadChoice& row : request.rows) {
    std::vector<at::Tensor> chosen;
    for (size_t layer = 0; layer < found.weights.size(); ++layer) {
      const at::Tensor& weights = found.weights[layer];
      if (!weights.defined() || (row.layer >= 0 && row.layer != static_cast<int64_t>(layer))) continue;
      chosen.push_back(row.head >= 0 ? weights.narrow(0, row.head, 1) : weights);
    }
    out.rows.push_back(chosen.empty() ? std::vector<float>() : numbers(at::cat(chosen).mean(0)));
  }
  return out;
}

}  // namespace

AttentionService::Shape AttentionInspector::shape() const {
  const ModelConfig& config = model_.config();
  return {.layers = config.num_layers,
          .heads = config.attention.num_heads,
          .max_tokens = std::min(kMaxAttentionTokens, engine_.max_request_tokens())};
}

GenerationService::Submission AttentionInspector::read(AttentionRequest request,
                                                       std::function<void(AttentionResult)> done) {
  return engine_.run_between_steps([this, request = std::move(request), done = std::move(done)](bool run) {
    AttentionResult result{.reason = FinishReason::cancelled, .message = {}, .report = {}};
    if (run) {
      try {
        result.report = report(model_, request);
        result.reason = FinishReason::stop;
      } catch (const std::exception& error) {
        log::warn("serve: attention: {}", error.what());
        result.reason = FinishReason::failed;
        result.message = error.what();
      }
    }
    done(std::move(result));
  });
}

}  // namespace lazy
