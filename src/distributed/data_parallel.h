// Data-parallel training. Every rank computes the gradients of its micro-batches. In the backward pass of the last
// micro-batch of a step the gradients are reduced over the ranks in flat buckets; the reduction of a bucket starts when
// the bucket is complete. With ZeRO-2 (Rajbhandari et al. 2020) a rank stores gradients and the moments of the
// optimizer only for its shard of each bucket, and the updated weights are all-gathered. With full sharding a rank
// stores only its shard of the weights (fully_shard.h). With a world size of 1 nothing is communicated.
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
  // Manages the parameters that require a gradient. `communicator` must outlive this object.
  DataParallel(const Parameters& parameters, Communicator& communicator, Sharding sharding,
               int64_t bucket_bytes = 25 << 20);
  // Manages a model in any sharding mode. Under full sharding only forward() and loss() of the model may be called, and
  // all ranks must call them together.
  DataParallel(LanguageModel& model, Communicator& communicator, Sharding sharding);
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  // The tensors that the optimizer of this rank updates. Without sharding these are the parameters. With sharding they
  // are this rank's shards as one-dimensional leaf tensors, which are views of the parameters under ZeRO-2.
  const std::vector<TensorShard>& shards() const { return shards_; }
  Parameters optimizer_parameters() const;
  bool sharded() const { return sharding_ != Sharding::replicate && communicator_.size() > 1; }
  bool fully_sharded() const { return full_ != nullptr; }

  // Must be called before the backward pass of each micro-batch. The backward pass of the last micro-batch in a step
  // starts the reductions.
  void begin_backward(bool last_micro_batch);
  // Waits for the reductions. Afterwards the gradients of the shards are valid.
  void finish_gradients();
  void zero_grad();
  // Total time in seconds that forward and backward passes have waited for collectives.
  double seconds_waited() const { return full_ ? full_->seconds_waited() + sharded_gradients_.seconds_waited() : 0; }
  // Must be called after all ranks have updated their shards.
  void weights_updated();

  // Copies the weights of rank 0 to all ranks. Under full sharding the weights of rank 0 are given by `full`; otherwise
  // they are in the model and `full` is not read.
  void broadcast_weights(const Parameters& full);
  // Returns the model tensors `stored` without sharding on rank 0, and an empty list on other ranks. Under full
  // sharding the returned tensors are copies in host memory. Collective.
  Parameters gather_full_weights(const Parameters& stored);
  // Optimizer state tensors are named PREFIX.PARAMETER, for example exp_avg.model.norm.weight. gather_state returns the
  // unsharded state on rank 0 and an empty list on other ranks. scatter_state is the inverse. In the unsharded state,
  // tensors that do not belong to a parameter, such as the step count, exist only on rank 0. Collective.
  Parameters gather_state(const Parameters& state);
  std::map<std::string, at::Tensor> scatter_state(std::map<std::string, at::Tensor> state, const std::string& file);
  // These functions are for sharded checkpoints. state_shards returns this rank's shards of the optimizer state, and
  // read_state reads the shards that this rank needs from a checkpoint.
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
  // Returns this rank's shard of a parameter, or null if the shard is empty.
  const TensorShard* shard_of(const std::string& parameter) const;
  // Number of elements of one rank's shard of a bucket, and the offset of this rank's shard in the bucket.
  int64_t shard_size(const GradientBucket& bucket) const { return bucket.padded / communicator_.size(); }
  int64_t shard_begin(const GradientBucket& bucket) const { return shard_size(bucket) * communicator_.rank(); }

  Parameters parameters_;
  Communicator& communicator_;
  const Sharding sharding_;
  std::vector<GradientBucket> buckets_;
  // Null without full sharding. With full sharding, buckets_ contains the layouts of its groups.
  std::unique_ptr<FullyShardedWeights> full_;
  ShardedGradientReducer sharded_gradients_{buckets_, communicator_};
  // For each parameter: the index of its bucket and the index of its slot in this bucket.
  std::vector<std::pair<size_t, size_t>> slot_of_;
  std::vector<TensorShard> shards_;
  std::map<std::string, size_t> shard_index_;  // index into shards_ by parameter name
  bool last_micro_batch_ = false;
  // Number of buckets whose reduction has started. All ranks start the buckets in the same order.
  size_t num_started_ = 0;
};

}  // namespace lazy::distributed
