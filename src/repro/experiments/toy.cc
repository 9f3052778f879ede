// Trains a toy transformer and records its attention: attention maps at snapshots, the weight that each token receives,
// and the distance of the token embeddings to BOS.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "core/error.h"
#include "core/stop.h"
#include "repro/experiments/toy_model.h"
#include "repro/experiments/toys.h"
#include "train/optimizer.h"

namespace lazy::repro {
namespace {

constexpr int64_t kHeldOut = 1024;     // number of sequences for each measured quantity
constexpr uint64_t kChainSeed = 1234;  // seed of the bigram chain, the same for all training seeds

// The sequences that are printed in the published source of the unigram study.
const int64_t kPrinted[5][10] = {{1, 4, 88, 0, 6, 93, 1, 63, 9, 32},
                                 {3, 2, 57, 0, 5, 9, 3, 20, 67, 0},
                                 {1, 15, 1, 84, 0, 0, 5, 18, 53, 18},
                                 {5, 1, 7, 10, 6, 1, 5, 73, 2, 0},
                                 {1, 1, 17, 25, 46, 0, 0, 88, 0, 5}};

at::Tensor with_bos(const at::Tensor& ids, std::optional<int64_t> bos) {
  return bos ? at::cat({at::full({ids.size(0), 1}, *bos, at::kLong), ids}, 1) : ids;
}

// Returns the loss of predicting each token from the preceding tokens. With BOS, the first content token is also
// predicted. Callers exclude it when they compare the loss with the lowest possible loss of the token source
// (ToySource::floor).
at::Tensor token_losses(const ToyModel& model, const at::Tensor& content, std::optional<int64_t> bos) {
  const at::Tensor input = with_bos(content.slice(1, 0, -1), bos), target = bos ? content : content.slice(1, 1);
  return -at::log_softmax(model.forward(input).logits, 2).gather(2, target.unsqueeze(2)).squeeze(2);
}

// Returns the total weight that a query puts on all positions with the same token as the query: (batch, content).
at::Tensor on_current(const at::Tensor& weights, const at::Tensor& content, int64_t shift) {
  const at::Tensor of_content = weights.slice(1, shift).slice(2, shift);
  return (of_content * content.unsqueeze(2).eq(content.unsqueeze(1))).sum(2);
}

// Returns the weight that each token of the vocabulary receives: for every occurrence the mean weight from the queries
// at this position or later, then the mean over occurrences.
at::Tensor received_by_token(const at::Tensor& weights, const at::Tensor& ids, int64_t tokens) {
  const int64_t length = ids.size(1);
  const at::Tensor received = weights.sum(1) / at::arange(length, 0, -1, weights.options()), flat = ids.reshape({-1});
  const at::Tensor sums = at::zeros({tokens}, at::kDouble).index_add(0, flat, received.reshape({-1}).to(at::kDouble));
  const at::Tensor counts = at::zeros({tokens}, at::kDouble).index_add(0, flat, at::ones({flat.size(0)}, at::kDouble));
  return sums / counts;  // NaN for tokens that do not occur
}

Json maps_of(const ToyModel& model, const at::Tensor& sequences, std::optional<int64_t> bos) {
  Json maps = Json::array();
  const at::Tensor weights = model.forward(with_bos(sequences, bos)).weights;
  for (int64_t n = 0; n < sequences.size(0); ++n) maps.push_back(rows_of(weights[n]));
  return maps;
}

// Converts numbers to JSON; the value of a token that does not occur is null.
Json finite(const at::Tensor& values) {
  Json out = Json::array();
  for (const double v : numbers_of(values)) out.push_back(std::isfinite(v) ? Json(v) : Json());
  return out;
}

}  // namespace

Json toy_experiment(const ExperimentInputs& run) {
  const Json& s = run.settings;
  const bool unigram = s.at("data") == "unigram";
  const auto vocabulary = s.at("vocabulary").get<int64_t>(), length = s.at("length").get<int64_t>(),
             width = s.at("width").get<int64_t>();
  const auto seed = s.at("seed").get<uint64_t>();
  if (unigram && (vocabulary != 100 || length != 10))
    fail("repro", "toy: unigram data requires vocabulary 100 and length 10, as in the published sequences");
  const ToySource source = unigram ? unigram_source(vocabulary, s.at("alpha").get<double>())
                                   : bigram_source(vocabulary, s.at("rank").get<int64_t>(), kChainSeed);
  const std::optional<int64_t> bos = s.at("bos").get<bool>() ? std::optional(vocabulary) : std::nullopt;
  const int64_t shift = bos ? 1 : 0, tokens = vocabulary + shift;
  ToyModel model({tokens, width, s.at("residual").get<bool>(), s.at("tied").get<bool>()}, seed);
  train::AdamW optimizer(model.parameters(), {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0});
  const at::Generator generator = at::detail::createCPUGenerator(1000 + seed),
                      held = at::detail::createCPUGenerator(99);
  const at::Tensor content = source.sample(kHeldOut, length + 1, held);
  at::Tensor shown = content.slice(0, 0, 16).slice(1, 0, length);
  if (unigram) shown = at::from_blob(const_cast<int64_t*>(&kPrinted[0][0]), {5, 10}, at::kLong).clone();

  const auto snapshots = s.at("snapshots").get<std::vector<int64_t>>();
  const auto steps = s.at("steps").get<int64_t>();
  Json out{{"floor", source.floor},
           {"uniform", std::log(double(vocabulary))},
           {"sequences", Json::array()},
           {"snapshots", Json::array()}};
  for (int64_t n = 0; n < shown.size(0); ++n)
    out["sequences"].push_back(
        std::vector<int64_t>(shown[n].data_ptr<int64_t>(), shown[n].data_ptr<int64_t>() + length));
  for (int64_t step = 0; step <= steps; ++step) {
    if (std::find(snapshots.begin(), snapshots.end(), step) != snapshots.end() || step == steps) {
      const at::NoGradGuard no_grad;
      const at::Tensor losses = token_losses(model, content, bos).slice(1, shift);
      out["snapshots"].push_back({{"step", step},
                                  {"loss", losses.mean().item<double>()},
                                  {"maps", maps_of(model, shown, bos)},
                                  {"embedding", rows_of(model.embedding())}});
      if (step == steps) break;
    }
    end_if_stopped("repro");
    const at::Tensor batch = source.sample(s.at("batch").get<int64_t>(), length + 1, generator);
    token_losses(model, batch, bos).mean().backward();
    optimizer.step(s.at("rate").get<double>(), 1, 0);
  }
  const at::NoGradGuard no_grad;
  const at::Tensor ids = content.slice(1, 0, length), input = with_bos(ids, bos),
                   weights = model.forward(input).weights;
  out["losses"] = numbers_of(token_losses(model, content, bos).slice(1, shift).mean(1));  // one number per sequence
  out["current"] = numbers_of(on_current(weights, ids, shift).slice(1, 1).mean(1));
  out["received"] = finite(received_by_token(weights, input, tokens));
  if (bos) {
    const at::Tensor e = model.embedding();
    // One value per sequence: mean over content queries.
    out["to_bos"] = numbers_of(weights.slice(1, 1).select(2, 0).mean(1));
    // For comparison: the weight of one key under uniform attention.
    out["uniform_share"] = at::arange(2, input.size(1) + 1, at::kDouble).reciprocal().mean().item<double>();
    out["distance"] = numbers_of((e.slice(0, 0, vocabulary) - e[vocabulary]).norm(2, {1}));
  }
  return out;
}

}  // namespace lazy::repro
