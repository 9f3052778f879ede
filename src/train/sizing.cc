#include "train/sizing.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "core/config.h"
#include "core/error.h"
#include "core/text.h"
#include "model/parameters.h"
#include "train/memory_estimate.h"
#include "train/throughput.h"

namespace lazy::train {

namespace {

constexpr int64_t kShortest = 32, kLongest = 4096;  // minimum and maximum sequence length in tokens
constexpr double kRateFromPretrained = 3e-4;
// Desired number of steps per run. With fewer and larger steps, a model learns less from the same number of tokens.
constexpr int64_t kStepsWanted = 2000;
constexpr int64_t kMaxStepTokens = 1 << 19;
constexpr int64_t kMinStepTokens = 1 << 10,
                  kMinGpuStepTokens = 1 << 14;  // the duration of smaller steps consists mostly of fixed costs
constexpr int64_t kMinSteps = 200;
constexpr int64_t kValidations = 10;
constexpr double kValidationShare = 0.05;  // time of validation relative to the time of the training steps
constexpr double kForwardShare = 1.0 / 3;  // time of a forward pass relative to the time of a training step
// Duration of one speed measurement in seconds: the fraction kMeasureShare of the requested training time, limited to
// the range from kMinMeasure to kMaxMeasure.
constexpr double kMeasureShare = 1.0 / 60, kMinMeasure = 0.5, kMaxMeasure = 20;
// Assumed speedup of model shapes that have not been measured, relative to the FLOP/s of the last measured shape.
constexpr double kHoped = 2;
constexpr double kFirstFlops = 5e9;  // assumed FLOP/s before the first measurement: one slow CPU core

int64_t power_of_two(double value) {  // returns the power of two whose ratio to `value` is nearest to 1
  return int64_t{1} << std::max<int64_t>(0, std::llround(std::log2(std::max(1.0, value))));
}

// Expected loss in nats for a number of layer parameters and training tokens: the fit of arXiv:2404.10102 to the data
// of Hoffmann et al. For a fixed amount of compute the minimum is at about 20 tokens per parameter.
double expected_loss(double parameters, double tokens) {
  return 1.82 + 482.0 / std::pow(parameters, 0.348) + 2085.0 / std::pow(tokens, 0.366);
}

double usable_seconds(const SizingRequest& r) { return kStepsShare * r.seconds; }
double most_tokens(const SizingRequest& r) { return kMaxPasses * static_cast<double>(r.train_tokens); }

MemoryQuery memory_query(const RunSize& size, const SizingRequest& r, const ModelConfig& model) {
  MemoryQuery query;
  query.model = model;
  query.batch_size = size.batch_size;
  query.seq_len = size.seq_len;
  query.accumulation = size.accumulation;
  query.bf16 = r.bf16;
  query.gpu = r.gpu;
  return query;
}

// Computes all settings that follow from the shape and the speed. Returns false if not even one sequence fits in
// memory.
bool lay_out(RunSize& size, const SizingRequest& r, double tokens_per_second) {
  size.tokens_per_second = tokens_per_second;
  const double in_time = usable_seconds(r) * tokens_per_second;
  size.limited_by_text = in_time > most_tokens(r);
  const double tokens = std::min(in_time, most_tokens(r));
  // The sequence length grows only with the cube root of the number of training tokens, because long contexts are only
  // useful after a model has learned short contexts, and the cost of attention grows quadratically.
  const int64_t longest = std::min(r.validation_tokens / kMinSequences, r.train_tokens / kMinSequences);
  size.seq_len = r.model ? std::min(r.model->max_length, kMaxSequenceFromModel)
                         : std::clamp(power_of_two(2 * std::cbrt(tokens)), kShortest, kLongest);
  while (size.seq_len > kShortest && size.seq_len > longest) size.seq_len /= 2;
  const auto least = static_cast<double>(r.gpu ? kMinGpuStepTokens : kMinStepTokens);
  const double step_tokens = std::min(std::max(tokens / kStepsWanted, std::min(least, tokens / kMinSteps)),
                                      static_cast<double>(kMaxStepTokens));
  const int64_t sequences = power_of_two(step_tokens / static_cast<double>(size.seq_len));
  size.batch_size = sequences;
  size.accumulation = 1;
  size.tied = true;
  ModelConfig model = model_of(size, r);
  const ParameterCount count = count_parameters(model);
  const int64_t table = model.vocab_size * model.hidden_size;
  size.layer_parameters = count.untied - 2 * table;
  size.tied = r.model ? r.model->tie_embeddings : 10 * table > size.layer_parameters;
  size.parameters = size.tied ? count.tied : count.untied;
  model = model_of(size, r);
  while ((size.memory = peak_bytes(memory_query(size, r, model))) > r.memory) {
    if (size.batch_size == 1) return false;
    size.batch_size /= 2;
    size.accumulation *= 2;
  }
  size.steps = std::max<int64_t>(1, static_cast<int64_t>(tokens / static_cast<double>(size.step_tokens())));
  size.passes = static_cast<double>(size.steps * size.step_tokens()) / static_cast<double>(r.train_tokens);
  size.lr = r.model ? kRateFromPretrained : std::min(4e-3, 1.0 / static_cast<double>(model.hidden_size));
  size.validation_every = std::max<int64_t>(1, size.steps / kValidations);
  const int64_t available = std::max<int64_t>(1, r.validation_tokens / (size.seq_len * size.batch_size));
  const double affordable =
      kValidationShare * static_cast<double>(size.validation_every * size.accumulation) / kForwardShare;
  size.validation_batches = std::clamp<int64_t>(static_cast<int64_t>(affordable), 1, std::min<int64_t>(available, 64));
  const double stepping = static_cast<double>(size.steps * size.step_tokens()) / tokens_per_second;
  size.seconds = stepping / kStepsShare;
  return true;
}

double loss_of(const RunSize& size) {
  return expected_loss(static_cast<double>(size.layer_parameters),
                       static_cast<double>(size.steps * size.step_tokens()));
}

}  // namespace

const std::vector<CandidateShape>& shape_ladder() {
  // Heads have 32 channels, or 64 channels from width 384 on. The inner width of SwiGLU is 8/3 of the width.
  static const std::vector<CandidateShape> ladder = [] {
    std::vector<CandidateShape> out;
    for (const auto& [width, layers] : std::initializer_list<std::pair<int64_t, int64_t>>{{64, 2},
                                                                                          {96, 3},
                                                                                          {128, 4},
                                                                                          {192, 4},
                                                                                          {256, 6},
                                                                                          {384, 6},
                                                                                          {512, 8},
                                                                                          {640, 10},
                                                                                          {768, 12},
                                                                                          {1024, 16},
                                                                                          {1024, 24},
                                                                                          {1536, 24},
                                                                                          {2048, 24}}) {
      out.push_back({width, layers, width / (width < 384 ? 32 : 64), (8 * width / 3 + 63) / 64 * 64});
    }
    return out;
  }();
  return ladder;
}

std::string model_section(const CandidateShape& shape, const std::string& kind, bool tied, int64_t seq_len) {
  std::string out = fmt::format(
      "kind = \"{}\"\nhidden_size = {}\nnum_hidden_layers = {}\nnum_heads = {}\nintermediate_size = {}\n"
      "tie_word_embeddings = {}\nmax_position_embeddings = {}\n",
      kind, shape.hidden_size, shape.layers, shape.heads, shape.intermediate_size, tied, seq_len);
  if (kind == "lazy") out += fmt::format("distance_bias_window = {}\n", std::min<int64_t>(512, seq_len));
  return out;
}

ModelConfig model_of(const RunSize& size, const SizingRequest& r) {
  if (r.model) return *r.model;
  Config config = Config::parse("[model]\n" + model_section(size.shape, r.kind, size.tied, size.seq_len) +
                                fmt::format("vocab_size = {}\n", r.vocab_size));
  return ModelConfig::from_toml(config);
}

RunSize choose_size(const SizingRequest& r, const MeasureSpeed& measure) {
  if (std::min(r.validation_tokens, r.train_tokens) < kMinSequences * kShortest) {
    fail("init", "the text is too small: expected at least {} tokens each for training and validation, found {} and {}",
         kMinSequences * kShortest, r.train_tokens, r.validation_tokens);
  }
  const std::vector<CandidateShape> ladder = r.model ? std::vector<CandidateShape>(1) : shape_ladder();
  std::vector<double> measured(ladder.size(), 0);  // tokens per second; 0: not measured
  std::vector<RunSize> sizes(ladder.size());
  const auto flops = [&](size_t n) { return flops_per_token(model_of(sizes[n], r), sizes[n].seq_len); };
  double rate = kFirstFlops;  // FLOP/s of the last measured shape
  double hoped = 1;
  const double seconds = std::clamp(kMeasureShare * r.seconds, kMinMeasure, kMaxMeasure);
  size_t best = 0;
  const auto too_little_memory = [&](const RunSize& size) {
    fail("init", "memory: expected at least {} for a model of width {}, found {}",
         human_bytes(static_cast<double>(size.memory)), model_of(size, r).hidden_size,
         human_bytes(static_cast<double>(r.memory)));
  };
  // Each iteration measures the shape with the lowest predicted loss, until that shape has already been measured. The
  // speed of unmeasured shapes is estimated optimistically, because larger shapes reach more FLOP/s than small ones.
  while (true) {
    double least = std::numeric_limits<double>::infinity();
    for (size_t n = 0; n < ladder.size(); ++n) {
      sizes[n].shape = ladder[n];
      if (sizes[n].seq_len == 0) sizes[n].seq_len = kShortest;
      if (!lay_out(sizes[n], r, measured[n] > 0 ? measured[n] : hoped * rate / flops(n)))
        break;  // this shape needs too much memory, and larger shapes need more
      // Exclude shapes with more layer parameters than the run can process tokens. Such a model memorizes the text, but
      // the scaling law has no penalty for overfitting.
      if (n > 0 && static_cast<double>(sizes[n].layer_parameters) > most_tokens(r)) break;
      if (const double loss = loss_of(sizes[n]); loss < least) {
        least = loss;
        best = n;
      }
    }
    if (std::isinf(least)) too_little_memory(sizes[0]);
    if (measured[best] > 0) break;
    measured[best] = measure(sizes[best], sizes[best].tokens_per_second, seconds);
    rate = measured[best] * flops(best);
    hoped = kHoped;
  }
  // Measure again, because the load of other programs varies. The second measurement uses the batch size and sequence
  // length that follow from the first one.
  const double again = measure(sizes[best], measured[best], 3 * seconds);
  if (!lay_out(sizes[best], r, 2 / (1 / again + 1 / measured[best]))) too_little_memory(sizes[best]);
  return sizes[best];
}

int64_t tokenizer_pieces(int64_t text_bytes) {
  // A token represents about four bytes and should occur about one hundred times in the text.
  constexpr int64_t kBytes = 400, kLeast = 1024, kMost = 32768;
  const int64_t pieces = text_bytes / kBytes;
  if (pieces < kLeast) return 0;
  return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::min(pieces, kMost))));
}

int64_t cut_documents_at(int64_t text_bytes, int64_t documents) {
  constexpr int64_t kWanted = 200, kLeast = 1 << 10, kMost = 64 << 10;
  if (documents >= kWanted) return 0;
  return std::clamp(
      static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(1, text_bytes / kWanted)))), kLeast,
      kMost);
}

}  // namespace lazy::train
