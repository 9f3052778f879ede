#include "model/offloaded_weights.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "model/blocks/linear.h"
#include "model/blocks/storage.h"
#include "model/checkpoint.h"

namespace lazy {

OffloadedWeights::OffloadedWeights(std::unique_ptr<WeightsFile> file, std::filesystem::path directory,
                                   const ModelConfig& config)
    : file_(std::move(file)),
      directory_(std::move(directory)),
      stored_(stored_tensors(config)),
      names_(match_weights(*file_, directory_, config)) {
  for (size_t s = 0; s < stored_.size(); ++s) {
    for (size_t p = 0; p < stored_[s].parts.size(); ++p) places_[stored_[s].parts[p]] = {s, p};
  }
}

void OffloadedWeights::hold(WeightPart& part, const at::Tensor& tensor) const {
  const c10::Storage storage = tensor.storage();
  auto place = std::find_if(part.memory.begin(), part.memory.end(),
                            [&](const Held& held) { return held.storage.is_alias_of(storage); });
  if (place == part.memory.end())
    place = part.memory.insert(place, {storage, 0, tensor.options().requires_grad(false), {}});
  place->numel = std::max(place->numel, tensor.storage_offset() + tensor.numel());
  release_storage(storage);
}

void OffloadedWeights::take(const std::vector<ShardUnit>& parts, const NamedTensors& stored, at::ScalarType compute) {
  const at::NoGradGuard no_grad;
  parts_.clear();
  std::vector<Target> others;
  for (const auto& [name, tensor] : stored) {
    if (!tensor.requires_grad() && places_.count(name) > 0)
      others.push_back({places_.at(name).first, places_.at(name).second, tensor});
  }
  read(others, /*check=*/true);
  for (const ShardUnit& of : parts) {
    WeightPart part;
    // Pairs of an fp32 weight of a linear layer and the rows of the low-precision matrix that replace it.
    std::vector<std::pair<at::Tensor, at::Tensor>> narrow;
    for (const Linear* product : compute == at::kFloat ? std::vector<const Linear*>() : of.products) {
      const at::Tensor matrix = product->place_matrix(compute);
      int64_t begin = 0;
      for (const at::Tensor& leaf : product->parts()) {
        narrow.emplace_back(leaf, matrix.narrow(0, begin, leaf.size(0)));
        begin += leaf.size(0);
      }
      hold(part, matrix);
      release_storage(product->parts().front().storage());
    }
    for (const auto& [name, tensor] : of.parameters) {
      const auto found =
          std::find_if(narrow.begin(), narrow.end(), [&t = tensor](const auto& n) { return n.first.is_same(t); });
      const at::Tensor target = found == narrow.end() ? tensor.detach() : found->second;
      part.targets.push_back({places_.at(name).first, places_.at(name).second, target});
      if (found == narrow.end()) hold(part, tensor);
    }
    parts_.push_back(std::move(part));
  }
}

void OffloadedWeights::read(const std::vector<Target>& targets, bool check) const {
  const at::NoGradGuard no_grad;
  for (size_t n = 0; n < targets.size();) {
    const size_t s = targets[n].stored;
    const std::string& name = names_.at(stored_[s].name);
    {
      const auto pieces =
          unpacked(stored_[s], check ? checked_tensor(*file_, directory_, stored_[s], names_) : file_->tensor(name));
      // The parts of one file tensor are consecutive in `targets`.
      for (; n < targets.size() && targets[n].stored == s; ++n) targets[n].tensor.copy_(pieces[targets[n].part]);
    }
    file_->forget(name);
    for (const std::string& other : stored_[s].also) {
      if (check && names_.count(other)) file_->forget(names_.at(other));
    }
  }
}

void OffloadedWeights::lend(WeightPart& part) {
  // Most layers have equal sizes, so the memory that one layer releases is reused for the next layer.
  for (Held& held : part.memory) {
    const auto fits = std::find_if(spare_.begin(), spare_.end(), [&](const at::Tensor& t) {
      return t.numel() == held.numel && t.dtype() == held.options.dtype();
    });
    if (fits == spare_.end()) continue;
    held.memory = *fits;
    spare_.erase(fits);
  }
  if (!spare_.empty()) {
    spare_.clear();
    return_free_memory();
  }
  for (Held& held : part.memory) {
    if (!held.memory.defined()) held.memory = at::empty({held.numel}, held.options);
    bind_storage(held.storage, held.memory, 0, held.numel);
  }
}

void OffloadedWeights::unshard(size_t index, std::optional<size_t>) {
  WeightPart& part = parts_.at(index);
  if (part.users++ > 0) return;
  lend(part);
  read(part.targets, !part.seen);
  part.seen = true;
}

void OffloadedWeights::reshard(size_t index) {
  WeightPart& part = parts_.at(index);
  if (--part.users > 0) return;
  for (Held& held : part.memory) {
    release_storage(held.storage);
    spare_.push_back(std::move(held.memory));
  }
}

}  // namespace lazy
