// Optimizer state between the ranks and a checkpoint of whole tensors.
#include <ATen/ATen.h>

#include <set>

#include "core/error.h"
#include "train/distributed/data_parallel.h"

namespace lazy::train {

namespace {

// "exp_avg.model.norm.weight" -> "exp_avg", "model.norm.weight"
std::pair<std::string, std::string> cut(const std::string& name) {
  const size_t dot = name.find('.');
  if (dot == std::string::npos) return {"", name};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

constexpr const char* kPrefixes[] = {"exp_avg", "exp_avg_sq"};

}  // namespace

std::vector<Piece> DataParallel::state_pieces(const Parameters& state) const {
  std::vector<Piece> out;
  for (const auto& [name, tensor] : state) {
    const Piece* const mine = piece_of(cut(name).second);
    Piece piece{
        .name = name, .tensor = tensor, .global_shape = tensor.sizes().vec(), .begin = 0, .end = tensor.numel()};
    if (mine) {
      piece.global_shape = mine->global_shape;
      piece.begin = mine->begin;
      piece.end = mine->end;
    } else if (!communicator_.first()) {
      continue;
    }
    out.push_back(std::move(piece));
  }
  return out;
}

std::map<std::string, at::Tensor> DataParallel::read_state(const PieceReader& reader, const std::string& file) const {
  std::map<std::string, std::vector<int64_t>> trained;
  for (const auto& [name, tensor] : parameters_) trained[name] = tensor.sizes().vec();
  std::map<std::string, at::Tensor> out;
  for (const std::string& name : reader.names()) {
    const auto parameter = trained.find(cut(name).second);
    if (parameter == trained.end()) {
      out[name] = reader.read(name);
      continue;
    }
    if (reader.shape(name) != parameter->second) {
      fail("checkpoint", "{}: {}: expected shape {}, found {}", file, name,
           c10::str(at::IntArrayRef(parameter->second)), c10::str(at::IntArrayRef(reader.shape(name))));
    }
    const Piece* const piece = piece_of(parameter->first);
    if (!piece) continue;
    out[name] = sharded() ? reader.read(name, piece->begin, piece->end) : reader.read(name);
  }
  return out;
}

DataParallel::Parameters DataParallel::gather_state(const Parameters& state) {
  if (!sharded()) return communicator_.first() ? state : Parameters{};
  const at::NoGradGuard no_grad;
  std::map<std::string, Piece> mine;
  Parameters out;
  for (Piece& piece : state_pieces(state)) {
    if (cut(piece.name).first.empty() && communicator_.first()) out.emplace_back(piece.name, piece.tensor);
    mine[piece.name] = std::move(piece);
  }
  for (const char* prefix : kPrefixes) {
    for (const Bucket& bucket : buckets_) {
      const int64_t first = share_begin(bucket);
      const at::Tensor share =
          at::zeros({share_size(bucket)}, bucket.slots.front().tensor.options().requires_grad(false));
      const auto name_of = [&](const Bucket::Slot& slot) {
        return std::string(prefix) + "." + parameters_[slot.parameter].first;
      };
      for (const Bucket::Slot& slot : bucket.slots) {
        const auto found = mine.find(name_of(slot));
        if (found == mine.end()) continue;
        share.narrow(0, slot.begin + found->second.begin - first, found->second.tensor.numel())
            .copy_(found->second.tensor);
      }
      const at::Tensor whole = at::empty({bucket.padded}, share.options());
      communicator_.all_gather(whole, share).wait();
      if (!communicator_.first()) continue;
      for (const Bucket::Slot& slot : bucket.slots) {
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
      if (communicator_.first()) {
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
      if (const Piece* const piece = piece_of(name)) {
        state[key] = sharded() ? whole.view({-1}).slice(0, piece->begin, piece->end).clone() : whole;
      } else {
        state.erase(key);
      }
    }
  }
  // The rest, such as the count of steps, is a number each.
  if (communicator_.first() && !state.count("step")) fail("checkpoint", "{}: missing tensor 'step'", file);
  const at::Tensor step = communicator_.first() ? state["step"].clone() : at::zeros({}, at::kLong);
  state["step"] = at::scalar_tensor(
      static_cast<int64_t>(communicator_.sum({communicator_.first() ? step.item<double>() : 0}).front()), at::kLong);
  return state;
}

}  // namespace lazy::train
