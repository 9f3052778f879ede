// Chooses model size, batch size, learning rate and length of a run for a given text, machine and time limit. `lazy
// init` writes the result.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "model/config.h"

namespace lazy::train {

struct SizingRequest {
  int64_t train_tokens = 0, validation_tokens = 0;  // number of tokens in each split of the corpus
  int64_t vocab_size = 0;
  std::string kind = "lazy";  // or "transformer"
  double seconds = 0;         // time limit of `lazy train`
  int64_t memory = 0;         // bytes available for weights, optimizer state and activations
  bool bf16 = false, gpu = false;
  std::optional<ModelConfig> model;  // pretrained model to continue from; its shape is the only candidate
};

// A candidate for the shape (width, number of layers and heads) of the model.
struct CandidateShape {
  int64_t hidden_size = 0, layers = 0, heads = 0, intermediate_size = 0;
};
const std::vector<CandidateShape>& shape_ladder();  // candidate shapes in ascending order of size

struct RunSize {
  CandidateShape shape;  // has no meaning for a pretrained model
  bool tied = true;
  int64_t parameters = 0, layer_parameters = 0;  // layer_parameters excludes embedding and output head
  int64_t seq_len = 0, batch_size = 0, accumulation = 1, steps = 0;
  double lr = 0;
  int64_t validation_every = 0, validation_batches = 0;
  double tokens_per_second = 0;  // measured training speed
  double seconds = 0;            // expected duration, including startup, validation and a reserve
  double passes = 0;             // number of passes over the training tokens
  int64_t memory = 0;            // expected memory in bytes
  bool limited_by_text = false;  // true if the run is limited by the number of passes over the text and not by time

  int64_t step_tokens() const { return seq_len * batch_size * accumulation; }
};

// Returns the [model] section for a shape as it is written to the configuration (without vocab_size).
std::string model_section(const CandidateShape& shape, const std::string& kind, bool tied, int64_t seq_len);
ModelConfig model_of(const RunSize& size, const SizingRequest& request);

// Measures the training speed in tokens per second for this model, batch size and sequence length. The measurement
// takes about `seconds`; `guess` is the expected speed.
using MeasureSpeed = std::function<double(const RunSize& size, double guess, double seconds)>;

// Chooses the shape with the lowest expected loss. A larger model learns more from each token, but a smaller model
// processes more tokens in the given time. Only the speeds of promising shapes are measured. Throws Error if the text
// is too small or if no shape fits in memory.
RunSize choose_size(const SizingRequest& request, const MeasureSpeed& measure);

inline constexpr int64_t kMaxSequenceFromModel = 2048;  // maximum sequence length of a run from a pretrained model
inline constexpr int64_t kMinSequences = 8;             // minimum number of sequences in each split
inline constexpr double kMaxPasses = 4;  // maximum number of passes over the training text (arXiv:2305.16264)
// Fraction of the time limit that training steps may use. Startup, validation and checkpoints use the rest.
inline constexpr double kStepsShare = 0.9;

// Returns the vocabulary size for a tokenizer that is trained on `text_bytes` bytes of text. 0: the text is too short
// to train a tokenizer; use byte tokens.
int64_t tokenizer_pieces(int64_t text_bytes);
// Returns the length in bytes at which documents are split, so that enough documents exist for a validation split. 0:
// do not split.
int64_t cut_documents_at(int64_t text_bytes, int64_t documents);

}  // namespace lazy::train
