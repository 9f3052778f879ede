// Data parallel training: every rank computes the gradients of its micro-batches, and they are summed over the ranks in
// flat buckets, each as soon as it is complete during the backward of a step's last micro-batch. With ZeRO-2
// (Rajbhandari et al. 2020) a rank keeps gradients and moments of its share of each bucket only, and updated weights
// are gathered. With full sharding it keeps its share of the weights only (full_shard.h). In a world of one nothing of
// this happens.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "train/checkpoint_pieces.h"
#include "train/distributed/bucket.h"
#include "train/distributed/communicator.h"
#include "train/distributed/full_shard.h"
#include "train/distributed/pieces.h"
#include "train/distributed/sharded_gradients.h"
#include "train/sharding.h"

namespace lazy::train {

class DataParallel {
 public:
  using Parameters = std::vector<std::pair<std::string, at::Tensor>>;
  // Of those that require a gradient; `communicator` must outlive this.
  DataParallel(const Parameters& parameters, Communicator& communicator, Sharding sharding,
               int64_t bucket_bytes = 25 << 20);
  // Of a model, in any way. Under full sharding the model is there for forward() and loss() alone, which all ranks
  // call.
  DataParallel(LanguageModel& model, Communicator& communicator, Sharding sharding);
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  // What this rank's optimizer updates: the parameters, or where state is sharded the rank's pieces of them,
  // one-dimensional leaves; with ZeRO-2 in the memory of their parameters.
  const std::vector<Piece>& pieces() const { return pieces_; }
  Parameters optimized() const;
  bool sharded() const { return sharding_ != Sharding::replicate && communicator_.size() > 1; }
  bool fully_sharded() const { return full_ != nullptr; }

  // Before the backward of a micro-batch; that of the step's last one starts the sums.
  void backward_begins(bool last);
  // Waits for the sums: then the pieces have their gradients.
  void finish_gradients();
  void drop_gradients();
  // Seconds that this rank has waited for the others within forward and backward passes so far.
  double waited() const { return full_ ? full_->waited() + sharded_gradients_.waited() : 0; }
  // The pieces have been updated, on all ranks.
  void weights_changed();

  // All ranks have rank 0's weights: the model's there, or under full sharding `whole`, which is read on rank 0 alone.
  void broadcast_weights(const Parameters& whole);
  // `stored`, the model's tensors, whole, on rank 0: under full sharding copies in host memory. Collective.
  Parameters whole_weights(const Parameters& stored);
  // Optimizer state by name, PREFIX.PARAMETER: the whole tensors on rank 0 from everyone's pieces (empty elsewhere),
  // and the pieces from rank 0's whole tensors. Tensors that belong to no parameter are rank 0's as they are.
  // Collective.
  Parameters gather_state(const Parameters& state);
  std::map<std::string, at::Tensor> scatter_state(std::map<std::string, at::Tensor> state, const std::string& file);
  // The same state as pieces, for a checkpoint that each rank writes its part of; and what this rank needs of one.
  std::vector<Piece> state_pieces(const Parameters& state) const;
  std::map<std::string, at::Tensor> read_state(const PieceReader& reader, const std::string& file) const;

 private:
  struct Hook;
  void keep_trained(const Parameters& parameters);
  void set_hooks();
  void gather_weights();
  void on_gradient(size_t parameter);
  void finish_sums();
  void begin_ready();
  void cut_pieces();
  // This rank's piece of a parameter; null when all of it is others'.
  const Piece* piece_of(const std::string& parameter) const;
  // Elements of a bucket that are a rank's share, and where ours begin.
  int64_t share_size(const Bucket& bucket) const { return bucket.padded / communicator_.size(); }
  int64_t share_begin(const Bucket& bucket) const { return share_size(bucket) * communicator_.rank(); }

  Parameters parameters_;
  Communicator& communicator_;
  const Sharding sharding_;
  std::vector<Bucket> buckets_;
  std::unique_ptr<FullShard> full_;  // its groups are the buckets
  ShardedGradients sharded_gradients_{buckets_, communicator_};
  std::vector<std::pair<size_t, size_t>> place_;  // of each parameter: bucket, slot in it
  std::vector<Piece> pieces_;
  std::map<std::string, size_t> piece_index_;  // by the parameter's name
  bool last_ = false;
  size_t begun_ = 0;  // buckets whose sum is under way: all ranks begin them in this order
};

}  // namespace lazy::train
