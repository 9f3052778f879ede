// Full sharding of the weights (Rajbhandari et al. 2020, ZeRO-3; Zhao et al. 2023, FSDP). The units of sharding are the
// layers, the embedding, the final norm and the head of the model. A rank stores its fp32 shard of each unit. The
// storage of a model tensor exists only while its unit is in use; its content is gathered from all ranks. Weights of
// matrix products are gathered in the compute dtype. The next unit is prefetched during computation.
#pragma once
#include <c10/core/Storage.h>

#include <optional>
#include <vector>

#include "distributed/communicator.h"
#include "distributed/gradient_bucket.h"
#include "model/blocks/shard_hooks.h"

namespace lazy {
class LanguageModel;
}

namespace lazy::distributed {

class FullyShardedWeights final : public ShardHooks {
 public:
  // The weights of the model must be equal on all ranks. This object keeps only the shard of this rank. The model and
  // the communicator must outlive this object. After its destruction the model has no weights.
  FullyShardedWeights(LanguageModel& model, Communicator& communicator);
  ~FullyShardedWeights() override;

  // A group contains the weights of one unit of sharding that are gathered in the same dtype. layout() describes where
  // each parameter is in the flat tensors of the group; Slot::parameter is an index into the trained parameters of the
  // model. local_shard() contains the fp32 weights that this rank stores.
  size_t size() const { return groups_.size(); }
  const GradientBucket& layout(size_t group) const { return groups_[group].layout; }
  const at::Tensor& local_shard(size_t group) const { return groups_[group].local_shard; }
  // Returns all weights of a group in fp32, in the layout of the group. Collective.
  at::Tensor gather_group(size_t group);
  // Must be called after the shards have changed. Discards gathered weights and invalidates copies of them.
  void invalidate();
  double seconds_waited() const { return seconds_waited_; }

  void unshard(size_t unit, std::optional<size_t> next) override;
  void reshard(size_t unit) override;

 private:
  // A storage of one or several model tensors, and the range of elements that it occupies in the gathered group.
  struct StorageRange {
    c10::Storage storage;
    int64_t begin = 0, numel = 0;
  };
  struct Group {
    size_t unit = 0;
    at::ScalarType dtype = at::kFloat;  // dtype of the all-gather
    GradientBucket layout;
    std::vector<StorageRange> storages;
    at::Tensor local_shard;
    at::Tensor gathered;  // receives the result while the all-gather is in flight
    Communicator::Work work;
    bool resident = false;
  };

  void make_groups(const ShardUnit& unit, size_t index, at::ScalarType compute, size_t& parameters);
  void add_parameter(Group& group, const at::Tensor& parameter, size_t index, const c10::Storage& storage);
  void shard(Group& group);
  void prefetch(size_t unit);
  void reshard(Group& group);

  LanguageModel& model_;
  Communicator& communicator_;
  std::vector<Group> groups_;                        // groups of all units, in the order of the units
  std::vector<std::vector<size_t>> groups_of_unit_;  // indices into groups_
  double seconds_waited_ = 0;
};

}  // namespace lazy::distributed
