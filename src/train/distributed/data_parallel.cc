#include "train/distributed/data_parallel.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "model/language_model.h"

namespace lazy::train {

// Called when a parameter's gradient of a backward has been added to what was there.
struct DataParallel::Hook : torch::autograd::PostAccumulateGradHook {
  Hook(DataParallel& owner, size_t parameter) : owner(owner), parameter(parameter) {}
  void operator()(const torch::autograd::Variable&) override { owner.on_gradient(parameter); }
  DataParallel& owner;
  size_t parameter;
};

DataParallel::DataParallel(const Parameters& parameters, Communicator& communicator, Sharding sharding,
                           int64_t bucket_bytes)
    : communicator_(communicator), sharding_(sharding) {
  keep_trained(parameters);
  if (communicator_.size() > 1) {
    std::vector<at::Tensor> tensors;
    for (const auto& item : parameters_) tensors.push_back(item.second);
    buckets_ = make_buckets(tensors, bucket_bytes, communicator_.size());
  }
  set_hooks();
  cut_pieces();
}

DataParallel::DataParallel(LanguageModel& model, Communicator& communicator, Sharding sharding)
    : DataParallel(sharding == Sharding::full_shard ? Parameters{} : model.parameters(), communicator, sharding) {
  if (sharding != Sharding::full_shard) return;
  keep_trained(model.parameters());
  if (communicator_.size() > 1) {
    full_ = std::make_unique<FullShard>(model, communicator_);
    for (size_t group = 0; group < full_->size(); ++group) buckets_.push_back(full_->layout(group));
  }
  set_hooks();
  cut_pieces();
}

void DataParallel::keep_trained(const Parameters& parameters) {
  for (const auto& item : parameters) {
    if (item.second.requires_grad()) parameters_.push_back(item);
  }
}

void DataParallel::set_hooks() {
  if (communicator_.size() == 1) return;
  place_.resize(parameters_.size());
  for (size_t b = 0; b < buckets_.size(); ++b) {
    for (size_t s = 0; s < buckets_[b].slots.size(); ++s) place_[buckets_[b].slots[s].parameter] = {b, s};
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameters_[i].second, std::make_unique<Hook>(*this, i));
  }
}

DataParallel::~DataParallel() {
  if (communicator_.size() == 1) return;
  for (const auto& item : parameters_) torch::autograd::impl::set_post_acc_grad_hooks(item.second, nullptr);
}

void DataParallel::cut_pieces() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [name, tensor] = parameters_[i];
    Piece piece{
        .name = name, .tensor = tensor, .global_shape = tensor.sizes().vec(), .begin = 0, .end = tensor.numel()};
    if (sharded()) {
      const Bucket& bucket = buckets_[place_[i].first];
      const Bucket::Slot& slot = bucket.slots[place_[i].second];
      const int64_t part = share_size(bucket), first = share_begin(bucket);
      piece.begin = std::clamp<int64_t>(first - slot.begin, 0, slot.numel);
      piece.end = std::clamp<int64_t>(first + part - slot.begin, 0, slot.numel);
      if (piece.begin == piece.end) continue;
      const at::Tensor memory =
          full_
              ? full_->share(place_[i].first).slice(0, slot.begin + piece.begin - first, slot.begin + piece.end - first)
              : tensor.detach().view({-1}).slice(0, piece.begin, piece.end);
      piece.tensor = memory.detach().requires_grad_(true);
    }
    piece_index_[name] = pieces_.size();
    pieces_.push_back(std::move(piece));
  }
}

const Piece* DataParallel::piece_of(const std::string& parameter) const {
  const auto found = piece_index_.find(parameter);
  return found == piece_index_.end() ? nullptr : &pieces_[found->second];
}

DataParallel::Parameters DataParallel::optimized() const {
  Parameters out;
  for (const Piece& piece : pieces_) out.emplace_back(piece.name, piece.tensor);
  return out;
}

void DataParallel::backward_begins(bool last) { last_ = last; }

void DataParallel::on_gradient(size_t parameter) {
  const at::NoGradGuard no_grad;
  const auto [b, s] = place_[parameter];
  Bucket::Slot& slot = buckets_[b].slots[s];
  if (full_) return sharded_gradients_.take(buckets_[b], slot);
  buckets_[b].fill(slot);
  if (!last_) return;
  slot.ready = true;
  begin_ready();
}

void DataParallel::begin_ready() {
  for (; begun_ < buckets_.size() && buckets_[begun_].complete(); ++begun_) {
    Bucket& bucket = buckets_[begun_];
    if (sharded()) {
      bucket.share = at::empty({share_size(bucket)}, bucket.flat.options());
      bucket.handle = communicator_.reduce_scatter(bucket.share, bucket.flat);
    } else {
      bucket.handle = communicator_.all_reduce(bucket.flat);
    }
  }
}

void DataParallel::finish_gradients() {
  if (communicator_.size() == 1) return;
  const at::NoGradGuard no_grad;
  if (full_) {
    sharded_gradients_.finish();
  } else {
    finish_sums();
  }
  if (!sharded()) return;
  for (const Bucket& bucket : buckets_) {
    for (const Bucket::Slot& slot : bucket.slots) {
      const Piece* const piece = piece_of(parameters_[slot.parameter].first);
      if (!piece) continue;
      at::Tensor leaf = piece->tensor;
      leaf.mutable_grad() =
          bucket.share.narrow(0, slot.begin + piece->begin - share_begin(bucket), piece->end - piece->begin);
    }
  }
}

void DataParallel::finish_sums() {
  // What got no gradient in the last backward counts with what it had before, or zero.
  for (size_t b = begun_; b < buckets_.size(); ++b) {
    for (Bucket::Slot& slot : buckets_[b].slots) {
      buckets_[b].fill(slot);
      slot.ready = true;
    }
  }
  begin_ready();
  for (Bucket& bucket : buckets_) {
    bucket.handle.wait();
    if (!sharded()) continue;
    for (Bucket::Slot& slot : bucket.slots) slot.tensor.mutable_grad().reset();
    bucket.flat.reset();
  }
}

void DataParallel::drop_gradients() {
  sharded_gradients_.settle();
  for (auto& item : parameters_) item.second.mutable_grad().reset();
  for (Piece& piece : pieces_) piece.tensor.mutable_grad().reset();
  for (Bucket& bucket : buckets_) {
    bucket.share.reset();
    if (full_) bucket.flat.reset();
    for (Bucket::Slot& slot : bucket.slots) slot.filled = slot.ready = false;
  }
  begun_ = 0;
}

void DataParallel::weights_changed() {
  if (full_) {
    full_->changed();
  } else if (sharded()) {
    gather_weights();
  }
}

// The pieces that other ranks have updated.
void DataParallel::gather_weights() {
  const at::NoGradGuard no_grad;
  struct Flight {
    at::Tensor whole;
    Communicator::Handle handle;
  };
  std::vector<Flight> flights(buckets_.size());
  const auto begin = [&](size_t b) {
    const Bucket& bucket = buckets_[b];
    // The parameters in the bucket's layout; only our share of it is sent.
    at::Tensor whole = at::empty({bucket.padded}, bucket.slots.front().tensor.options().requires_grad(false));
    const int64_t part = share_size(bucket), first = share_begin(bucket);
    const at::Tensor share = at::zeros({part}, whole.options());
    for (const Bucket::Slot& slot : bucket.slots) {
      const int64_t low = std::max(first, slot.begin), high = std::min(first + part, slot.begin + slot.numel);
      if (low >= high) continue;
      share.slice(0, low - first, high - first)
          .copy_(slot.tensor.view({-1}).slice(0, low - slot.begin, high - slot.begin));
    }
    flights[b] = {whole, communicator_.all_gather(whole, share)};
  };
  constexpr size_t kAhead = 2;  // buckets under way while one is copied
  for (size_t b = 0; b < std::min(kAhead, buckets_.size()); ++b) begin(b);
  for (size_t b = 0; b < buckets_.size(); ++b) {
    flights[b].handle.wait();
    for (Bucket::Slot& slot : buckets_[b].slots) {
      slot.tensor.view({-1}).copy_(flights[b].whole.narrow(0, slot.begin, slot.numel));
    }
    flights[b] = {};
    if (b + kAhead < buckets_.size()) begin(b + kAhead);
  }
}

void DataParallel::broadcast_weights(const Parameters& whole) {
  if (communicator_.size() == 1) return;
  const at::NoGradGuard no_grad;
  if (!full_) {
    for (const auto& item : parameters_) communicator_.broadcast(item.second.detach()).wait();
    return;
  }
  const std::map<std::string, at::Tensor> by_name(whole.begin(), whole.end());
  for (const auto& [name, parameter] : parameters_) {
    const at::Tensor passing = at::empty(parameter.sizes(), parameter.options().requires_grad(false));
    if (communicator_.first()) passing.copy_(by_name.at(name));
    communicator_.broadcast(passing).wait();
    const Piece* const piece = piece_of(name);
    if (piece) at::Tensor(piece->tensor).copy_(passing.view({-1}).slice(0, piece->begin, piece->end));
  }
  full_->changed();
}

DataParallel::Parameters DataParallel::whole_weights(const Parameters& stored) {
  if (!full_) return communicator_.first() ? stored : Parameters{};
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> by_name;
  for (size_t group = 0; group < full_->size(); ++group) {
    const at::Tensor whole = full_->whole(group);
    if (!communicator_.first()) continue;
    for (const Bucket::Slot& slot : buckets_[group].slots) {
      by_name[parameters_[slot.parameter].first] =
          at::empty(slot.tensor.sizes(), at::kFloat).copy_(buckets_[group].view(slot, whole));
    }
  }
  Parameters out;
  if (!communicator_.first()) return out;
  for (const auto& [name, tensor] : stored) {
    const auto found = by_name.find(name);
    out.emplace_back(name, found == by_name.end() ? tensor : found->second);
  }
  return out;
}

}  // namespace lazy::train
