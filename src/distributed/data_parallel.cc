#include "distributed/data_parallel.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "model/language_model.h"

namespace lazy::distributed {

// This hook runs after autograd has accumulated a gradient into grad() of a parameter.
struct DataParallel::Hook : torch::autograd::PostAccumulateGradHook {
  Hook(DataParallel& owner, size_t parameter) : owner(owner), parameter(parameter) {}
  void operator()(const torch::autograd::Variable&) override { owner.on_gradient(parameter); }
  DataParallel& owner;
  size_t parameter;
};

DataParallel::DataParallel(const Parameters& parameters, Communicator& communicator, Sharding sharding,
                           int64_t bucket_bytes)
    : communicator_(communicator), sharding_(sharding) {
  set_trained_parameters(parameters);
  if (communicator_.size() > 1) {
    std::vector<at::Tensor> tensors;
    for (const auto& item : parameters_) tensors.push_back(item.second);
    buckets_ = make_gradient_buckets(tensors, bucket_bytes, communicator_.size());
  }
  register_hooks();
  make_shards();
}

DataParallel::DataParallel(LanguageModel& model, Communicator& communicator, Sharding sharding)
    : DataParallel(sharding == Sharding::full_shard ? Parameters{} : model.parameters(), communicator, sharding) {
  if (sharding != Sharding::full_shard) return;
  set_trained_parameters(model.parameters());
  if (communicator_.size() > 1) {
    full_ = std::make_unique<FullyShardedWeights>(model, communicator_);
    for (size_t group = 0; group < full_->size(); ++group) buckets_.push_back(full_->layout(group));
  }
  register_hooks();
  make_shards();
}

void DataParallel::set_trained_parameters(const Parameters& parameters) {
  for (const auto& item : parameters) {
    if (item.second.requires_grad()) parameters_.push_back(item);
  }
}

void DataParallel::register_hooks() {
  if (communicator_.size() == 1) return;
  slot_of_.resize(parameters_.size());
  for (size_t b = 0; b < buckets_.size(); ++b) {
    for (size_t s = 0; s < buckets_[b].slots.size(); ++s) slot_of_[buckets_[b].slots[s].parameter] = {b, s};
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameters_[i].second, std::make_unique<Hook>(*this, i));
  }
}

DataParallel::~DataParallel() {
  if (communicator_.size() == 1) return;
  for (const auto& item : parameters_) torch::autograd::impl::set_post_acc_grad_hooks(item.second, nullptr);
}

void DataParallel::make_shards() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [name, tensor] = parameters_[i];
    TensorShard shard{
        .name = name, .tensor = tensor, .global_shape = tensor.sizes().vec(), .begin = 0, .end = tensor.numel()};
    if (sharded()) {
      const GradientBucket& bucket = buckets_[slot_of_[i].first];
      const GradientBucket::Slot& slot = bucket.slots[slot_of_[i].second];
      const int64_t size = shard_size(bucket), first = shard_begin(bucket);
      shard.begin = std::clamp<int64_t>(first - slot.begin, 0, slot.numel);
      shard.end = std::clamp<int64_t>(first + size - slot.begin, 0, slot.numel);
      if (shard.begin == shard.end) continue;
      const at::Tensor memory = full_ ? full_->local_shard(slot_of_[i].first)
                                            .slice(0, slot.begin + shard.begin - first, slot.begin + shard.end - first)
                                      : tensor.detach().view({-1}).slice(0, shard.begin, shard.end);
      shard.tensor = memory.detach().requires_grad_(true);
    }
    shard_index_[name] = shards_.size();
    shards_.push_back(std::move(shard));
  }
}

const TensorShard* DataParallel::shard_of(const std::string& parameter) const {
  const auto found = shard_index_.find(parameter);
  return found == shard_index_.end() ? nullptr : &shards_[found->second];
}

DataParallel::Parameters DataParallel::optimizer_parameters() const {
  Parameters out;
  for (const TensorShard& shard : shards_) out.emplace_back(shard.name, shard.tensor);
  return out;
}

void DataParallel::begin_backward(bool last_micro_batch) { last_micro_batch_ = last_micro_batch; }

void DataParallel::on_gradient(size_t parameter) {
  const at::NoGradGuard no_grad;
  const auto [b, s] = slot_of_[parameter];
  GradientBucket::Slot& slot = buckets_[b].slots[s];
  if (full_) return sharded_gradients_.add_gradient(buckets_[b], slot);
  buckets_[b].fill(slot);
  if (!last_micro_batch_) return;
  slot.ready = true;
  start_complete_buckets();
}

void DataParallel::start_complete_buckets() {
  for (; num_started_ < buckets_.size() && buckets_[num_started_].complete(); ++num_started_) {
    GradientBucket& bucket = buckets_[num_started_];
    if (sharded()) {
      bucket.shard = at::empty({shard_size(bucket)}, bucket.flat.options());
      bucket.work = communicator_.reduce_scatter(bucket.shard, bucket.flat);
    } else {
      bucket.work = communicator_.all_reduce(bucket.flat);
    }
  }
}

void DataParallel::finish_gradients() {
  if (communicator_.size() == 1) return;
  const at::NoGradGuard no_grad;
  if (full_) {
    sharded_gradients_.finish();
  } else {
    finish_reductions();
  }
  if (!sharded()) return;
  for (const GradientBucket& bucket : buckets_) {
    for (const GradientBucket::Slot& slot : bucket.slots) {
      const TensorShard* const shard = shard_of(parameters_[slot.parameter].first);
      if (!shard) continue;
      at::Tensor leaf = shard->tensor;
      leaf.mutable_grad() =
          bucket.shard.narrow(0, slot.begin + shard->begin - shard_begin(bucket), shard->end - shard->begin);
    }
  }
}

void DataParallel::finish_reductions() {
  // A parameter without a gradient in the last backward pass uses the gradient of earlier micro-batches, or zero.
  for (size_t b = num_started_; b < buckets_.size(); ++b) {
    for (GradientBucket::Slot& slot : buckets_[b].slots) {
      buckets_[b].fill(slot);
      slot.ready = true;
    }
  }
  start_complete_buckets();
  for (GradientBucket& bucket : buckets_) {
    bucket.work.wait();
    if (!sharded()) continue;
    for (GradientBucket::Slot& slot : bucket.slots) slot.tensor.mutable_grad().reset();
    bucket.flat.reset();
  }
}

void DataParallel::zero_grad() {
  sharded_gradients_.wait_in_flight();
  for (auto& item : parameters_) item.second.mutable_grad().reset();
  for (TensorShard& shard : shards_) shard.tensor.mutable_grad().reset();
  for (GradientBucket& bucket : buckets_) {
    bucket.shard.reset();
    if (full_) bucket.flat.reset();
    for (GradientBucket::Slot& slot : bucket.slots) slot.filled = slot.ready = false;
  }
  num_started_ = 0;
}

void DataParallel::weights_updated() {
  if (full_) {
    full_->invalidate();
  } else if (sharded()) {
    all_gather_weights();
  }
}

// Used with ZeRO-2: every rank receives the weights that the other ranks have updated.
void DataParallel::all_gather_weights() {
  const at::NoGradGuard no_grad;
  struct InFlight {
    at::Tensor whole;
    Communicator::Work work;
  };
  std::vector<InFlight> in_flight(buckets_.size());
  const auto begin = [&](size_t b) {
    const GradientBucket& bucket = buckets_[b];
    // `whole` receives the weights of all ranks in the layout of the bucket. This rank sends its shard `local`.
    at::Tensor whole = at::empty({bucket.padded}, bucket.slots.front().tensor.options().requires_grad(false));
    const int64_t size = shard_size(bucket), first = shard_begin(bucket);
    const at::Tensor local = at::zeros({size}, whole.options());
    for (const GradientBucket::Slot& slot : bucket.slots) {
      const int64_t low = std::max(first, slot.begin), high = std::min(first + size, slot.begin + slot.numel);
      if (low >= high) continue;
      local.slice(0, low - first, high - first)
          .copy_(slot.tensor.view({-1}).slice(0, low - slot.begin, high - slot.begin));
    }
    in_flight[b] = {whole, communicator_.all_gather(whole, local)};
  };
  constexpr size_t kPrefetch = 2;  // number of all-gathers in flight while a bucket is copied
  for (size_t b = 0; b < std::min(kPrefetch, buckets_.size()); ++b) begin(b);
  for (size_t b = 0; b < buckets_.size(); ++b) {
    in_flight[b].work.wait();
    for (GradientBucket::Slot& slot : buckets_[b].slots) {
      slot.tensor.view({-1}).copy_(in_flight[b].whole.narrow(0, slot.begin, slot.numel));
    }
    in_flight[b] = {};
    if (b + kPrefetch < buckets_.size()) begin(b + kPrefetch);
  }
}

void DataParallel::broadcast_weights(const Parameters& full) {
  if (communicator_.size() == 1) return;
  const at::NoGradGuard no_grad;
  if (!full_) {
    for (const auto& item : parameters_) communicator_.broadcast(item.second.detach()).wait();
    return;
  }
  const std::map<std::string, at::Tensor> by_name(full.begin(), full.end());
  for (const auto& [name, parameter] : parameters_) {
    const at::Tensor buffer = at::empty(parameter.sizes(), parameter.options().requires_grad(false));
    if (communicator_.is_rank0()) buffer.copy_(by_name.at(name));
    communicator_.broadcast(buffer).wait();
    const TensorShard* const shard = shard_of(name);
    if (shard) at::Tensor(shard->tensor).copy_(buffer.view({-1}).slice(0, shard->begin, shard->end));
  }
  full_->invalidate();
}

DataParallel::Parameters DataParallel::gather_full_weights(const Parameters& stored) {
  if (!full_) return communicator_.is_rank0() ? stored : Parameters{};
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> by_name;
  for (size_t group = 0; group < full_->size(); ++group) {
    const at::Tensor whole = full_->gather_group(group);
    if (!communicator_.is_rank0()) continue;
    for (const GradientBucket::Slot& slot : buckets_[group].slots) {
      by_name[parameters_[slot.parameter].first] =
          at::empty(slot.tensor.sizes(), at::kFloat).copy_(buckets_[group].view(slot, whole));
    }
  }
  Parameters out;
  if (!communicator_.is_rank0()) return out;
  for (const auto& [name, tensor] : stored) {
    const auto found = by_name.find(name);
    out.emplace_back(name, found == by_name.end() ? tensor : found->second);
  }
  return out;
}

}  // namespace lazy::distributed
