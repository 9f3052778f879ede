// Full sharding of the weights (Rajbhandari et al. 2020, ZeRO-3; Zhao et al. 2023, FSDP). A rank keeps its shard of
// each unit of the model in fp32; the storage of the model's own tensors exists only while the unit is in use, gathered
// from all ranks. Matrix weights are gathered in the compute dtype. The next unit is prefetched while one computes.
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
  // Keeps this rank's shard of weights that are equal on all ranks. Model and communicator must outlive this object;
  // after its destruction the model has no weights.
  FullyShardedWeights(LanguageModel& model, Communicator& communicator);
  ~FullyShardedWeights() override;

  // A group is the weights of one unit that are gathered in one dtype. layout(): of its gradients; Slot::parameter is
  // an index into the model's trained parameters. local_shard(): this rank's weights, fp32.
  size_t size() const { return groups_.size(); }
  const GradientBucket& layout(size_t group) const { return groups_[group].layout; }
  const at::Tensor& local_shard(size_t group) const { return groups_[group].local_shard; }
  // All weights of a group in its layout, fp32. Collective.
  at::Tensor gather_group(size_t group);
  // To be called after the shards have changed: drops gathered weights and invalidates copies of them.
  void invalidate();
  double seconds_waited() const { return seconds_waited_; }

  void unshard(size_t unit, std::optional<size_t> next) override;
  void reshard(size_t unit) override;

 private:
  // A storage of one or several of the model's tensors, and its range in the gathered group.
  struct StorageRange {
    c10::Storage storage;
    int64_t begin = 0, numel = 0;
  };
  struct Group {
    size_t unit = 0;
    at::ScalarType dtype = at::kFloat;  // in which it is gathered
    GradientBucket layout;
    std::vector<StorageRange> storages;
    at::Tensor local_shard;
    at::Tensor gathered;  // while the all-gather is in flight
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
  std::vector<Group> groups_;                        // in the order of their units
  std::vector<std::vector<size_t>> groups_of_unit_;  // indices into groups_
  double seconds_waited_ = 0;
};

}  // namespace lazy::distributed
