// Full sharding of the weights (Rajbhandari et al. 2020, ZeRO-3; Zhao et al. 2023, FSDP): a rank keeps its share of
// each part of the model in fp32, and the memory of the model's own tensors is there only while the part is used,
// gathered from all ranks. Products' weights are gathered in the computing precision. The next part is gathered while
// one computes.
#pragma once
#include <c10/core/Storage.h>

#include <vector>

#include "model/parts.h"
#include "train/distributed/bucket.h"
#include "train/distributed/communicator.h"

namespace lazy {
class LanguageModel;
}

namespace lazy::train {

class FullShard final : public ShardHooks {
 public:
  // Every rank has the same weights: from here on, only its share of them. Model and communicator must outlive this,
  // after which the model has no weights.
  FullShard(LanguageModel& model, Communicator& communicator);
  ~FullShard() override;

  // How many groups of weights there are, the gradients' layout of each (Slot::parameter counts the trained parameters
  // in the model's order), and this rank's weights of it, fp32.
  size_t size() const { return groups_.size(); }
  const Bucket& layout(size_t group) const { return groups_[group].layout; }
  const at::Tensor& share(size_t group) const { return groups_[group].share; }
  // All weights of a group in its layout, fp32. Collective.
  at::Tensor whole(size_t group);
  // The shares have new values.
  void changed();
  double waited() const { return waited_; }  // seconds, for weights

  void before(size_t part, std::optional<size_t> next) override;
  void after(size_t part) override;

 private:
  // Memory of one or several of the model's tensors that lies in the gathered group.
  struct Place {
    c10::Storage storage;
    int64_t begin = 0, numel = 0;
  };
  struct Group {
    size_t part = 0;
    at::ScalarType dtype = at::kFloat;  // in which it is gathered
    Bucket layout;
    std::vector<Place> places;
    at::Tensor share;
    at::Tensor gathered;  // while it is under way
    Communicator::Handle handle;
    bool here = false;
  };

  void make_groups(const ShardUnit& part, size_t index, at::ScalarType compute, size_t& parameters);
  void add(Group& group, const at::Tensor& parameter, size_t index, const c10::Storage& storage);
  void cut(Group& group);
  void begin(size_t part);
  void drop(Group& group);

  LanguageModel& model_;
  Communicator& communicator_;
  std::vector<Group> groups_;                 // in the order of their parts
  std::vector<std::vector<size_t>> of_part_;  // each part's groups
  double waited_ = 0;
};

}  // namespace lazy::train
