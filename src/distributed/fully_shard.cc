#include "distributed/fully_shard.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "core/clock.h"
#include "model/blocks/linear.h"
#include "model/blocks/storage.h"
#include "model/language_model.h"

namespace lazy::distributed {

namespace {

constexpr int64_t kAligned = 64;  // alignment of tensors in a group, in elements, for vector loads and matrix products

int64_t rounded_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace

FullyShardedWeights::FullyShardedWeights(LanguageModel& model, Communicator& communicator)
    : model_(model), communicator_(communicator) {
  const at::NoGradGuard no_grad;
  size_t parameters = 0;
  for (const ShardUnit& unit : model.shard_units()) {
    groups_of_unit_.emplace_back();
    make_groups(unit, groups_of_unit_.size() - 1, model.compute_dtype(), parameters);
  }
  model.set_shard_hooks(this);
}

FullyShardedWeights::~FullyShardedWeights() { model_.set_shard_hooks(nullptr); }

void FullyShardedWeights::make_groups(const ShardUnit& unit, size_t index, at::ScalarType compute, size_t& parameters) {
  Group compute_group{.unit = index, .dtype = compute}, fp32_group{.unit = index};
  // Pairs of storages: the fp32 master weights of a linear layer, and their copy in the compute dtype, which the matrix
  // products read instead.
  std::vector<std::pair<c10::Storage, c10::Storage>> replaced;
  if (compute != at::kFloat) {
    for (const Linear* linear : unit.products) {
      replaced.emplace_back(linear->parts().front().storage(), linear->place_matrix(compute).storage());
    }
  }
  for (const auto& [name, tensor] : unit.parameters) {
    const auto found = std::find_if(replaced.begin(), replaced.end(),
                                    [&t = tensor](const auto& r) { return r.first.is_alias_of(t.storage()); });
    const bool is_replaced = found != replaced.end();
    add_parameter(is_replaced ? compute_group : fp32_group, tensor, parameters++,
                  is_replaced ? found->second : tensor.storage());
  }
  for (Group* group : {&compute_group, &fp32_group}) {
    if (group->layout.slots.empty()) continue;
    shard(*group);
    groups_of_unit_[index].push_back(groups_.size());
    groups_.push_back(std::move(*group));
  }
  for (const auto& [master, copy] : replaced) release_storage(master);
}

void FullyShardedWeights::add_parameter(Group& group, const at::Tensor& parameter, size_t index,
                                        const c10::Storage& storage) {
  GradientBucket& layout = group.layout;
  auto range = std::find_if(group.storages.begin(), group.storages.end(),
                            [&](const StorageRange& p) { return p.storage.is_alias_of(storage); });
  if (range == group.storages.end()) {
    const auto numel = static_cast<int64_t>(parameter.storage().nbytes() / parameter.element_size());
    range = group.storages.insert(range, {storage, rounded_up(layout.numel, kAligned), numel});
    layout.numel = range->begin + numel;
    layout.padded = rounded_up(layout.numel, communicator_.size());
  }
  layout.slots.push_back({.parameter = index,
                          .begin = range->begin + parameter.storage_offset(),
                          .numel = parameter.numel(),
                          .tensor = parameter});
}

void FullyShardedWeights::shard(Group& group) {
  const GradientBucket& layout = group.layout;
  const at::Tensor whole = at::zeros({layout.padded}, layout.slots.front().tensor.options().requires_grad(false));
  for (const GradientBucket::Slot& slot : layout.slots) layout.view(slot, whole).copy_(slot.tensor);
  const int64_t shard_size = layout.padded / communicator_.size();
  group.local_shard = whole.narrow(0, shard_size * communicator_.rank(), shard_size).clone();
  for (const StorageRange& range : group.storages) release_storage(range.storage);
}

at::Tensor FullyShardedWeights::gather_group(size_t group) {
  const at::NoGradGuard no_grad;
  const at::Tensor out = at::empty({groups_[group].layout.padded}, groups_[group].local_shard.options());
  communicator_.all_gather(out, groups_[group].local_shard).wait();
  return out;
}

void FullyShardedWeights::prefetch(size_t unit) {
  for (const size_t index : groups_of_unit_[unit]) {
    Group& group = groups_[index];
    if (group.resident || group.gathered.defined()) continue;
    group.gathered = at::empty({group.layout.padded}, group.local_shard.options().dtype(group.dtype));
    group.work = communicator_.all_gather(group.gathered, group.local_shard.to(group.dtype));
  }
}

void FullyShardedWeights::unshard(size_t unit, std::optional<size_t> next) {
  const at::NoGradGuard no_grad;
  prefetch(unit);
  if (next) prefetch(*next);
  const Communicator::WaitScope waiting(communicator_, "gathering the weights of a layer");
  for (const size_t index : groups_of_unit_[unit]) {
    Group& group = groups_[index];
    if (group.resident) continue;
    const auto begun = Clock::now();
    group.work.wait();
    seconds_waited_ += seconds_since(begun);
    for (const StorageRange& range : group.storages)
      bind_storage(range.storage, group.gathered, range.begin, range.numel);
    group.gathered.reset();
    group.resident = true;
  }
}

void FullyShardedWeights::reshard(size_t unit) {
  for (const size_t index : groups_of_unit_[unit]) reshard(groups_[index]);
}

void FullyShardedWeights::reshard(Group& group) {
  for (const StorageRange& range : group.storages) release_storage(range.storage);
  group.resident = false;
}

void FullyShardedWeights::invalidate() {
  for (Group& group : groups_) {
    group.work.wait();
    group.gathered.reset();
    reshard(group);
    // Cached copies in another dtype detect changed weights by the version counter.
    for (const GradientBucket::Slot& slot : group.layout.slots) torch::autograd::impl::bump_version(slot.tensor);
  }
}

}  // namespace lazy::distributed
