#include "train/distributed/full_shard.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "core/clock.h"
#include "model/blocks/linear.h"
#include "model/blocks/storage_memory.h"
#include "model/language_model.h"

namespace lazy::train {

namespace {

constexpr int64_t kAligned = 64;  // elements: what vector loads and matrix products like

int64_t rounded_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace

FullShard::FullShard(LanguageModel& model, Communicator& communicator) : model_(model), communicator_(communicator) {
  const at::NoGradGuard no_grad;
  size_t parameters = 0;
  for (const ShardUnit& part : model.parts()) {
    of_part_.emplace_back();
    make_groups(part, of_part_.size() - 1, model.compute_dtype(), parameters);
  }
  model.set_part_hooks(this);
}

FullShard::~FullShard() { model_.set_part_hooks(nullptr); }

void FullShard::make_groups(const ShardUnit& part, size_t index, at::ScalarType compute, size_t& parameters) {
  Group narrow{.part = index, .dtype = compute}, wide{.part = index};
  // fp32 weights that nobody reads, and what is read in their place.
  std::vector<std::pair<c10::Storage, c10::Storage>> replaced;
  if (compute != at::kFloat) {
    for (const Linear* linear : part.products) {
      replaced.emplace_back(linear->parts().front().storage(), linear->place_matrix(compute).storage());
    }
  }
  for (const auto& [name, tensor] : part.parameters) {
    const auto found = std::find_if(replaced.begin(), replaced.end(),
                                    [&t = tensor](const auto& r) { return r.first.is_alias_of(t.storage()); });
    const bool by_copy = found != replaced.end();
    add(by_copy ? narrow : wide, tensor, parameters++, by_copy ? found->second : tensor.storage());
  }
  for (Group* group : {&narrow, &wide}) {
    if (group->layout.slots.empty()) continue;
    cut(*group);
    of_part_[index].push_back(groups_.size());
    groups_.push_back(std::move(*group));
  }
  for (const auto& [master, copy] : replaced) release_storage(master);
}

void FullShard::add(Group& group, const at::Tensor& parameter, size_t index, const c10::Storage& storage) {
  Bucket& layout = group.layout;
  auto place = std::find_if(group.places.begin(), group.places.end(),
                            [&](const Place& p) { return p.storage.is_alias_of(storage); });
  if (place == group.places.end()) {
    const auto numel = static_cast<int64_t>(parameter.storage().nbytes() / parameter.element_size());
    place = group.places.insert(place, {storage, rounded_up(layout.numel, kAligned), numel});
    layout.numel = place->begin + numel;
    layout.padded = rounded_up(layout.numel, communicator_.size());
  }
  layout.slots.push_back({.parameter = index,
                          .begin = place->begin + parameter.storage_offset(),
                          .numel = parameter.numel(),
                          .tensor = parameter});
}

void FullShard::cut(Group& group) {
  const Bucket& layout = group.layout;
  const at::Tensor whole = at::zeros({layout.padded}, layout.slots.front().tensor.options().requires_grad(false));
  for (const Bucket::Slot& slot : layout.slots) layout.view(slot, whole).copy_(slot.tensor);
  const int64_t part = layout.padded / communicator_.size();
  group.share = whole.narrow(0, part * communicator_.rank(), part).clone();
  for (const Place& place : group.places) release_storage(place.storage);
}

at::Tensor FullShard::whole(size_t group) {
  const at::NoGradGuard no_grad;
  const at::Tensor out = at::empty({groups_[group].layout.padded}, groups_[group].share.options());
  communicator_.all_gather(out, groups_[group].share).wait();
  return out;
}

void FullShard::begin(size_t part) {
  for (const size_t index : of_part_[part]) {
    Group& group = groups_[index];
    if (group.here || group.gathered.defined()) continue;
    group.gathered = at::empty({group.layout.padded}, group.share.options().dtype(group.dtype));
    group.handle = communicator_.all_gather(group.gathered, group.share.to(group.dtype));
  }
}

void FullShard::before(size_t part, std::optional<size_t> next) {
  const at::NoGradGuard no_grad;
  begin(part);
  if (next) begin(*next);
  const Communicator::Waiting waiting(communicator_, "gathering a layer's weights");
  for (const size_t index : of_part_[part]) {
    Group& group = groups_[index];
    if (group.here) continue;
    const auto begun = Clock::now();
    group.handle.wait();
    waited_ += seconds_since(begun);
    for (const Place& place : group.places) bind_storage(place.storage, group.gathered, place.begin, place.numel);
    group.gathered.reset();
    group.here = true;
  }
}

void FullShard::after(size_t part) {
  for (const size_t index : of_part_[part]) drop(groups_[index]);
}

void FullShard::drop(Group& group) {
  for (const Place& place : group.places) release_storage(place.storage);
  group.here = false;
}

void FullShard::changed() {
  for (Group& group : groups_) {
    group.handle.wait();
    group.gathered.reset();
    drop(group);
    // Copies that somebody has made of them are out of date.
    for (const Bucket::Slot& slot : group.layout.slots) torch::autograd::impl::bump_version(slot.tensor);
  }
}

}  // namespace lazy::train
