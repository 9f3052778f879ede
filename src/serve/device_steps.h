// Decoding steps that do not wait for the host: the next tokens are sampled where the model computes, and feed the next
// step there, so that a step can be queued before the last one's tokens are known. What a step needs from the host
// (positions, pages, how to sample) does not depend on tokens and travels in one copy.
//
// On a GPU a step is a CUDA graph, recorded when its shape first comes: the rows and the width of the block table, both
// powers of two. Rows beyond the sequences are a token at place 0 of page 0. Every kernel of a step computes a row by
// itself (ops/few_rows.h, ops/decode.h), so the shape does not show in the bits.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <compare>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "generate/sampler.h"
#include "model/language_model.h"
#include "model/paged_keys.h"
#include "model/recorded_work.h"
#include "ops/sample_tokens.h"

namespace lazy {

struct ScoredToken;

class DeviceSteps {
 public:
  struct Row {
    std::span<const int64_t> pages;  // of the sequence
    int64_t position;                // of the token that the step reads
    int64_t slot;                    // the sequence's, below `slots`
    ops::SampleRow how;
    int logprobs;  // as in GenerationRequest
  };
  // The tokens of a step, on their way to the host.
  class Result {
   public:
    // Waits for them. Row n's token, with log-probabilities where the step had them and the row wants them; id -1: the
    // logits are not numbers.
    ScoredToken token(size_t n);

   private:
    friend class DeviceSteps;
    at::Tensor tokens, logprobs, likely_ids, likely;  // on the host, (rows) and (rows, kMostLikely)
    std::vector<int> wanted;                          // by row: logprobs
    c10::Event arrived{c10::DeviceType::CPU};
    bool waits = false;
  };
  static constexpr int64_t kMostLikely = 20;  // log-probabilities that are reported beside a token's

  // `pages`: the pools, whose other fields are not used. Both outlive this.
  DeviceSteps(LanguageModel& model, const PagedKeys& pages, int64_t page_size, int64_t slots, bool record);

  // Rows of a step at most; more are several steps.
  int64_t most_rows() const { return most_rows_; }
  // The sequence in `slot` begins: the tokens of its prompt and text so far, for penalties, and biases. Only for rows
  // that are adjusted.
  void begin_adjusted(int64_t slot, const TokenCounts& seen, const SamplingOptions& sampling);
  // The first token of sequences whose prompts have been read; hidden (rows, hidden_size) of their last tokens. Only
  // slot and sampling of the rows are used.
  std::unique_ptr<Result> begin(const at::Tensor& hidden, std::span<const Row> rows);
  // The next token of each.
  std::unique_ptr<Result> step(std::span<const Row> rows);

 private:
  struct Inputs;
  struct Shape {
    int64_t rows, width;    // pages a row
    bool scored, adjusted;  // with log-probabilities; with penalties or biases for any row
    auto operator<=>(const Shape&) const = default;
  };
  static Shape shape_of(std::span<const Row> rows, int64_t padded, int64_t width);
  Inputs inputs(const Shape& shape) const;
  void send(std::span<const Row> rows, const Shape& shape);
  void sample(const at::Tensor& logits, const Inputs& in, const Shape& shape);
  void run(const Shape& shape);
  std::unique_ptr<Result> fetch(std::span<const Row> rows, bool scored);

  LanguageModel& model_;
  const PagedKeys& pages_;
  const int64_t page_size_, slots_;
  int64_t least_rows_ = 1, most_rows_ = 0;
  at::Tensor input_;          // int64, what send() sends
  at::Tensor last_;           // (slots + 1) int64: the newest token of each slot; the last one is the padding's
  at::Tensor counts_, bias_;  // (slots + 1, vocabulary), made when first needed
  at::Tensor tokens_, logprobs_, likely_ids_, likely_;  // results
  RecordedWork<Shape> recorded_;
};

}  // namespace lazy
