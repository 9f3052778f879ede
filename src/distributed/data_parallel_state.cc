// Converts optimizer state between the shards on the ranks and the unsharded tensors of a checkpoint.
#include <ATen/ATen.h>

#include <set>

#include "core/error.h"
#include "distributed/data_parallel.h"

namespace lazy::distributed {

namespace {

// Example: "exp_avg.model.norm.weight" -> {"exp_avg", "model.norm.weight"}
std::pair<std::string, std::string> split_prefix(const std::string& name) {
  const size_t dot = name.find('.');
  if (dot == std::string::npos) return {"", name};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

constexpr const char* kPrefixes[] = {"exp_avg", "exp_avg_sq"};

}  // namespace

std::vector<TensorShard> DataParallel::state_shards(const Parameters& state) const {
  std::vector<TensorShard> out;
  for (const auto& [name, tensor] : state) {
    const TensorShard* const own = shard_of(split_prefix(name).second);
    TensorShard shard{
        .name = name, .tensor = tensor, .global_shape = tensor.sizes().vec(), .begin = 0, .end = tensor.numel()};
    if (own) {
      shard.global_shape = own->global_shape;
      shard.begin = own->begin;
      shard.end = own->end;
    } else if (!communicator_.is_rank0()) {
      continue;
    }
    out.push_back(std::move(shard));
  }
  return out;
}

std::map<std::string, at::Tensor> DataParallel::read_state(const ShardReader& reader, const std::string& file) const {
  std::map<std::string, std::vector<int64_t>> trained;
  for (const auto& [name, tensor] : parameters_) trained[name] = tensor.sizes().vec();
  std::map<std::string, at::Tensor> out;
  for (const std::string& name : reader.names()) {
    const auto parameter = trained.find(split_prefix(name).second);
    if (parameter == trained.end()) {
      out[name] = reader.read(name);
      continue;
    }
    if (reader.shape(name) != parameter->second) {
      fail("checkpoint", "{}: {}: expected shape {}, found {}", file, name,
           c10::str(at::IntArrayRef(parameter->second)), c10::str(at::IntArrayRef(reader.shape(name))));
    }
    const TensorShard* const shard = shard_of(parameter->first);
    if (!shard) continue;
    out[name] = sharded() ? reader.read(name, shard->begin, shard->end) : reader.read(name);
  }
  return out;
}

DataParallel::Parameters DataParallel::gather_state(const Parameters& state) {
  if (!sharded()) return communicator_.is_rank0() ? state : Parameters{};
  const at::NoGradGuard no_grad;
  std::map<std::string, TensorShard> own;
  Parameters out;
  for (TensorShard& shard : state_shards(state)) {
    if (split_prefix(shard.name).first.empty() && communicator_.is_rank0()) out.emplace_back(shard.name, shard.tensor);
    own[shard.name] = std::move(shard);
  }
  for (const char* prefix : kPrefixes) {
    for (const GradientBucket& bucket : buckets_) {
      const int64_t first = shard_begin(bucket);
      const at::Tensor local =
          at::zeros({shard_size(bucket)}, bucket.slots.front().tensor.options().requires_grad(false));
      const auto name_of = [&](const GradientBucket::Slot& slot) {
        return std::string(prefix) + "." + parameters_[slot.parameter].first;
      };
      for (const GradientBucket::Slot& slot : bucket.slots) {
        const auto found = own.find(name_of(slot));
        if (found == own.end()) continue;
        local.narrow(0, slot.begin + found->second.begin - first, found->second.tensor.numel())
            .copy_(found->second.tensor);
      }
      const at::Tensor whole = at::empty({bucket.padded}, local.options());
      communicator_.all_gather(whole, local).wait();
      if (!communicator_.is_rank0()) continue;
      for (const GradientBucket::Slot& slot : bucket.slots) {
        out.emplace_back(name_of(slot),
                         whole.narrow(0, slot.begin, slot.numel).view(slot.tensor.sizes()).to(at::kCPU).clone());
      }
    }
  }
  return out;
}

std::map<std::string, at::Tensor> DataParallel::scatter_state(std::map<std::string, at::Tensor> state,
                                                              const std::string& file) {
  if (communicator_.size() == 1) return state;
  const at::NoGradGuard no_grad;
  for (const char* prefix : kPrefixes) {
    for (const auto& [name, parameter] : parameters_) {
      const std::string key = std::string(prefix) + "." + name;
      at::Tensor whole = at::empty(parameter.sizes(), parameter.options().requires_grad(false));
      if (communicator_.is_rank0()) {
        const auto found = state.find(key);
        if (found == state.end()) fail("checkpoint", "{}: missing tensor '{}'", file, key);
        if (found->second.sizes() != whole.sizes() || found->second.scalar_type() != whole.scalar_type()) {
          fail("checkpoint", "{}: {}: expected {}, found {}", file, key,
               c10::str(whole.scalar_type(), " ", whole.sizes()),
               c10::str(found->second.scalar_type(), " ", found->second.sizes()));
        }
        whole.copy_(found->second);
      }
      communicator_.broadcast(whole).wait();
      if (const TensorShard* const shard = shard_of(name)) {
        state[key] = sharded() ? whole.view({-1}).slice(0, shard->begin, shard->end).clone() : whole;
      } else {
        state.erase(key);
      }
    }
  }
  // The step count does not belong to a parameter, so it is sent separately.
  if (communicator_.is_rank0() && !state.count("step")) fail("checkpoint", "{}: missing tensor 'step'", file);
  const at::Tensor step = communicator_.is_rank0() ? state["step"].clone() : at::zeros({}, at::kLong);
  state["step"] = at::scalar_tensor(
      static_cast<int64_t>(communicator_.sum({communicator_.is_rank0() ? step.item<double>() : 0}).front()), at::kLong);
  return state;
}

}  // namespace lazy::distributed
