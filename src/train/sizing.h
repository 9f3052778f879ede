// Size, batch, rate and length of a run for a text, a machine and a time: what `lazy init` writes.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "model/config.h"

namespace lazy::train {

struct SizingRequest {
  int64_t train_tokens = 0, validation_tokens = 0;  // of the corpus
  int64_t vocab_size = 0;
  std::string kind = "lazy";  // or "transformer"
  double seconds = 0;         // that `lazy train` may take
  int64_t memory = 0;         // bytes for weights, optimizer and activations
  bool bf16 = false, gpu = false;
  std::optional<ModelConfig> model;  // a pretrained model to train on: its shape is the only one
};

// A shape of the ladder.
struct Shape {
  int64_t hidden_size = 0, layers = 0, heads = 0, intermediate_size = 0;
};
const std::vector<Shape>& shape_ladder();  // by size

struct RunSize {
  Shape shape;  // empty for a pretrained model
  bool tied = true;
  int64_t parameters = 0, layer_parameters = 0;  // of all; of the layers alone
  int64_t seq_len = 0, batch_size = 0, accumulation = 1, steps = 0;
  double lr = 0;
  int64_t validation_every = 0, validation_batches = 0;
  double tokens_per_second = 0;  // measured
  double seconds = 0;            // expected, with start, validation and a reserve
  double passes = 0;             // over the training tokens
  int64_t memory = 0;            // expected bytes
  bool limited_by_text = false;  // the passes end the run, not the time

  int64_t step_tokens() const { return seq_len * batch_size * accumulation; }
};

// The [model] section of a shape, as the configuration will have it (without vocab_size).
std::string model_section(const Shape& shape, const std::string& kind, bool tied, int64_t seq_len);
ModelConfig model_of(const RunSize& size, const SizingRequest& request);

// Tokens a second of training steps of this model, batch and length, timed for about so many seconds; `guess` is the
// speed to expect.
using MeasureSpeed = std::function<double(const RunSize& size, double guess, double seconds)>;

// The shape of least expected loss: a larger one learns more of a token, a smaller one sees more tokens in the time.
// Speeds are measured, of the promising shapes only. Error when the text is too small or no shape fits the memory.
RunSize choose_size(const SizingRequest& request, const MeasureSpeed& measure);

inline constexpr double kMostPasses = 4;    // further passes over a text teach less and less (arXiv 2305.16264)
inline constexpr double kStepsShare = 0.9;  // of the time: the rest is start, validation and checkpoints

// Pieces of a tokenizer to train on so many bytes of text; 0: too few, bytes are the tokens.
int64_t tokenizer_pieces(int64_t text_bytes);
// Where to cut documents so that enough of them exist to hold some out; 0: there are enough.
int64_t cut_documents_at(int64_t text_bytes, int64_t documents);

}  // namespace lazy::train
