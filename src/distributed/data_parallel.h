// Data parallel training. Every rank computes the gradients of its micro-batches; they are reduced over the ranks in
// flat buckets, each as soon as it is complete in the backward pass of a step's last micro-batch. With ZeRO-2
// (Rajbhandari et al. 2020) a rank keeps gradients and moments of its shard of each bucket only, and updated weights
// are all-gathered. With full sharding it keeps its shard of the weights only (fully_shard.h). With a world size of 1
// nothing is communicated.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "distributed/communicator.h"
#include "distributed/fully_shard.h"
#include "distributed/gradient_bucket.h"
#include "distributed/shard_file.h"
#include "distributed/sharding.h"

namespace lazy::distributed {

class DataParallel {
 public:
  using Parameters = std::vector<std::pair<std::string, at::Tensor>>;
  // Uses the parameters that require a gradient. `communicator` must outlive this object.
  DataParallel(const Parameters& parameters, Communicator& communicator, Sharding sharding,
               int64_t bucket_bytes = 25 << 20);
  // Of a model, in any mode. Under full sharding only forward() and loss() of the model may be called, on all ranks
  // together.
  DataParallel(LanguageModel& model, Communicator& communicator, Sharding sharding);
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  // What this rank's optimizer updates: the parameters, or where state is sharded this rank's shards of them as
  // one-dimensional leaf tensors (with ZeRO-2 views of the parameters).
  const std::vector<TensorShard>& shards() const { return shards_; }
  Parameters optimizer_parameters() const;
  bool sharded() const { return sharding_ != Sharding::replicate && communicator_.size() > 1; }
  bool fully_sharded() const { return full_ != nullptr; }

  // To be called before the backward pass of each micro-batch; that of the step's last one starts the reductions.
  void begin_backward(bool last_micro_batch);
  // Waits for the reductions; afterwards the shards have their gradients.
  void finish_gradients();
  void zero_grad();
  // Seconds that forward and backward passes have waited for collectives so far.
  double seconds_waited() const { return full_ ? full_->seconds_waited() + sharded_gradients_.seconds_waited() : 0; }
  // To be called after all ranks have updated their shards.
  void weights_updated();

  // Copies rank 0's weights to all ranks: the model's own, or under full sharding `full`, which is read on rank 0 only.
  void broadcast_weights(const Parameters& full);
  // The model's tensors `stored`, unsharded, on rank 0; under full sharding copies in host memory. Collective.
  Parameters gather_full_weights(const Parameters& stored);
  // Optimizer state has names PREFIX.PARAMETER. gather_state: unsharded on rank 0, empty elsewhere. scatter_state: the
  // reverse. Tensors that belong to no parameter are rank 0's. Collective.
  Parameters gather_state(const Parameters& state);
  std::map<std::string, at::Tensor> scatter_state(std::map<std::string, at::Tensor> state, const std::string& file);
  // For sharded checkpoints: this rank's shards of the optimizer state, and the shards that this rank needs of a file.
  std::vector<TensorShard> state_shards(const Parameters& state) const;
  std::map<std::string, at::Tensor> read_state(const ShardReader& reader, const std::string& file) const;

 private:
  struct Hook;
  void set_trained_parameters(const Parameters& parameters);
  void register_hooks();
  void all_gather_weights();
  void on_gradient(size_t parameter);
  void finish_reductions();
  void start_complete_buckets();
  void make_shards();
  // This rank's shard of a parameter; null when it is empty.
  const TensorShard* shard_of(const std::string& parameter) const;
  // Size of a rank's shard of a bucket, and the offset of this rank's.
  int64_t shard_size(const GradientBucket& bucket) const { return bucket.padded / communicator_.size(); }
  int64_t shard_begin(const GradientBucket& bucket) const { return shard_size(bucket) * communicator_.rank(); }

  Parameters parameters_;
  Communicator& communicator_;
  const Sharding sharding_;
  std::vector<GradientBucket> buckets_;
  std::unique_ptr<FullyShardedWeights> full_;  // buckets_ has its groups' layouts
  ShardedGradientReducer sharded_gradients_{buckets_, communicator_};
  std::vector<std::pair<size_t, size_t>> slot_of_;  // of each parameter: index of the bucket, of the slot in it
  std::vector<TensorShard> shards_;
  std::map<std::string, size_t> shard_index_;  // by parameter name
  bool last_micro_batch_ = false;
  size_t num_started_ = 0;  // buckets whose reduction has started: the same order on all ranks
};

}  // namespace lazy::distributed
