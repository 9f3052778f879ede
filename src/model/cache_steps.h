// Tokens behind a cache without the host's launches: a token's pass, recorded once, is queued again for the next ones.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/kv_cache.h"
#include "model/recorded_work.h"

namespace lazy {

class LanguageModel;

// Serves models whose tokens find all that they need in states of constant size: RetNet, Mamba2, DeltaNet, Gated
// DeltaNet, and TTT, which has a record for each place in a mini-batch. The pass reads the states from tensors that
// stay where they are, and writes the next ones there. Caches take turns in them.
class CacheSteps {
 public:
  // Without `record`, and for other models, logits() is the model's own pass. The weights must stay what and where they
  // are. On a GPU steps need a stream that is not the default one (model/own_stream.h).
  CacheSteps(LanguageModel& model, bool record);
  ~CacheSteps();

  // model.logits(model.forward(ids, {.cache = &cache}).hidden) for ids (batch, 1); the next call overwrites it. From
  // here on the cache's states are written in place, so that a copy of it is no snapshot, and it must be known to end.
  at::Tensor logits(const at::Tensor& ids, KVCache& cache);
  // The cache ends, or is moved or copied.
  void forget(const KVCache& cache);

 private:
  using States = std::vector<std::vector<at::Tensor>>;

  void enter(const at::Tensor& ids, KVCache& cache);
  void leave();  // the cache whose turn it was keeps its states
  void run(int64_t place);

  LanguageModel& model_;
  int64_t cycle_;                   // tokens after which the same work comes again; 0: never
  RecordedWork<int64_t> recorded_;  // by the place in the cycle
  at::Tensor ids_, logits_;
  States states_;
  KVCache* turn_ = nullptr;  // its states are `states_`
};

}  // namespace lazy
