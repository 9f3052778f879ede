// Decodes tokens with a recurrent cache by replaying CUDA graphs: the pass over one token is captured once and replayed
// for the following tokens, which avoids the cost of launching each kernel from the host.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/kv_cache.h"
#include "model/recorded_work.h"

namespace lazy {

class LanguageModel;

// Supports models whose state has a constant size: RetNet, Mamba2, DeltaNet, Gated DeltaNet and TTT. TTT needs one
// graph per position within a mini-batch. The captured pass reads the states from fixed tensors and writes the next
// states there. If several caches are used, their states are swapped into these tensors in turn.
class GraphedStateRunner {
 public:
  // Without `record`, and for unsupported models, logits() runs the model's ordinary forward pass. The weights must not
  // change or move while this object exists. On a GPU, graph capture requires a non-default stream
  // (model/own_stream.h).
  GraphedStateRunner(LanguageModel& model, bool record);
  ~GraphedStateRunner();

  // Returns model.logits(model.forward(ids, {.cache = &cache}).hidden) for ids (batch, 1). The next call overwrites the
  // returned tensor. From now on the cache's states are updated in place, so a copy of the cache shares them and is not
  // a snapshot. Call forget() before the cache is destroyed.
  at::Tensor logits(const at::Tensor& ids, KVCache& cache);
  // Must be called before `cache` is destroyed, moved or copied.
  void forget(const KVCache& cache);

 private:
  using States = std::vector<std::vector<at::Tensor>>;

  void enter(const at::Tensor& ids, KVCache& cache);
  // Makes a copy of the fixed tensors for the cache `turn_`, so that another cache can use the fixed tensors.
  void leave();
  void run(int64_t place);

  LanguageModel& model_;
  int64_t cycle_;                   // number of tokens after which the same graphs repeat; 0: no graphs
  RecordedWork<int64_t> recorded_;  // key: the token's position within the cycle
  at::Tensor ids_, logits_;
  States states_;
  KVCache* turn_ = nullptr;  // the cache whose states are in `states_`; null: none
};

}  // namespace lazy
