// Decode steps without host synchronization. Each sequence's next token is sampled on the device where the model runs,
// and the following step reads the token there. A step can therefore be queued before the host knows the tokens of the
// previous step. The inputs that a step needs from the host (positions, page numbers, sampling parameters) do not
// depend on generated tokens and are transferred in one copy.
//
// On a GPU each step replays a CUDA graph. A graph is captured when its shape first occurs. The shape consists of the
// number of rows and the width of the block table, both padded to powers of two. A padding row computes one token whose
// keys and values are written to page 0, which no sequence uses. Every kernel of a step computes a row independently of
// the other rows (ops/skinny_gemm.h, ops/decode.h), so the results are bitwise the same with and without padding.
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

class DecodeRunner {
 public:
  struct DecodeRow {
    std::span<const int64_t> pages;  // page table of the sequence
    int64_t position;                // position of the token that is the step's input
    int64_t slot;  // index of the sequence in the device buffers (latest token, token counts); less than `slots`
    ops::SampleRow how;
    int logprobs;  // number of most likely tokens to report; -1: no log-probabilities
  };
  // The sampled tokens of one step. They are copied to the host asynchronously.
  class SampledTokens {
   public:
    // Waits for the copy and returns the token of row n. The result includes log-probabilities if the step computed
    // them and the row requested them. The id is -1 if the logits contain NaN or the largest logit is infinite.
    ScoredToken token(size_t n);

   private:
    friend class DecodeRunner;
    at::Tensor tokens, logprobs, likely_ids, likely;  // host copies of shape (rows) or (rows, n)
    std::vector<int> wanted;                          // per row: number of log-probabilities to report, or -1
    c10::Event arrived{c10::DeviceType::CPU};
    bool waits = false;
  };
  static constexpr int64_t kMaxLikely = 20;  // maximum number of most likely tokens reported per row

  // `pages` supplies the K and V pools; its other fields are ignored. `model` and `pages` must outlive this object.
  DecodeRunner(LanguageModel& model, const PagedKeys& pages, int64_t page_size, int64_t slots, bool record);

  // Maximum number of rows per step. Callers split larger batches into several steps.
  int64_t most_rows() const { return most_rows_; }
  // Initializes the penalty counts and logit biases of `slot` on the device. `seen` counts the tokens of the prompt and
  // the tokens generated so far. The call is needed only for sequences that use penalties or logit biases
  // (ops::SampleRow::adjusted).
  void begin_adjusted(int64_t slot, const TokenCounts& seen, const SamplingOptions& sampling);
  // Samples the first token of sequences whose prompts have been processed. hidden: (rows, hidden_size), the hidden
  // state of each sequence's last prompt token. The fields `pages` and `position` of the rows are ignored.
  std::unique_ptr<SampledTokens> begin(const at::Tensor& hidden, std::span<const DecodeRow> rows);
  // Queues one decode step, which computes and samples the next token of each row's sequence.
  std::unique_ptr<SampledTokens> step(std::span<const DecodeRow> rows);

 private:
  struct Inputs;
  struct Shape {
    int64_t rows, width;    // rows: number of rows after padding; width: pages per row of the block table
    bool scored, adjusted;  // scored: a row requests log-probabilities; adjusted: a row has penalties or biases
    auto operator<=>(const Shape&) const = default;
  };
  static Shape shape_of(std::span<const DecodeRow> rows, int64_t padded, int64_t width);
  Inputs inputs(const Shape& shape) const;
  void send(std::span<const DecodeRow> rows, const Shape& shape);
  void sample(const at::Tensor& logits, const Inputs& in, const Shape& shape);
  void run(const Shape& shape);
  std::unique_ptr<SampledTokens> fetch(std::span<const DecodeRow> rows, bool scored);

  LanguageModel& model_;
  const PagedKeys& pages_;
  const int64_t page_size_, slots_;
  int64_t least_rows_ = 1, most_rows_ = 0;
  at::Tensor input_;          // int64 device buffer; send() copies the inputs of a step into it
  at::Tensor last_;           // (slots + 1) int64: latest token of each slot; padding rows use the last entry
  at::Tensor counts_, bias_;  // token counts and logit biases, (slots + 1, vocabulary); allocated on first use
  at::Tensor tokens_, logprobs_, likely_ids_, likely_;  // outputs of a step
  RecordedWork<Shape> recorded_;
};

}  // namespace lazy
