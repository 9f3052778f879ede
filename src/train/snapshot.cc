#include "train/snapshot.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace lazy::train {

Snapshot::Snapshot() = default;
Snapshot::~Snapshot() = default;

void Snapshot::take(const NamedTensors& tensors) {
  const at::NoGradGuard no_grad;
  copies_.resize(tensors.size());
  std::optional<at::Device> gpu;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, source] = tensors[i];
    auto& [copied_name, copy] = copies_[i];
    copied_name = name;
    if (!copy.defined() || copy.sizes() != source.sizes() || copy.scalar_type() != source.scalar_type()) {
      copy = at::empty(source.sizes(), at::TensorOptions().dtype(source.scalar_type()).pinned_memory(!source.is_cpu()));
    }
    copy.copy_(source.detach(), /*non_blocking=*/true);
    if (!source.is_cpu()) gpu = source.device();
  }
  copied_.reset();
  if (!gpu) return;
  copied_ = std::make_unique<c10::Event>(gpu->type());
  copied_->record(c10::impl::VirtualGuardImpl(gpu->type()).getStream(*gpu));
}

const NamedTensors& Snapshot::tensors() const {
  if (copied_) copied_->synchronize();
  return copies_;
}

}  // namespace lazy::train
