#include "train/distributed/communicator.h"

#include <ATen/ATen.h>
#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdlib>
#include <cstring>

#include "core/error.h"
#include "core/text.h"
#include "train/distributed/agreement.h"
#include "train/distributed/backend.h"
#include "train/distributed/watch.h"

namespace lazy::train {
using std::chrono::milliseconds;

namespace {

// The watch notices first; the back ends' own limits are for what it cannot see.
constexpr milliseconds kLater{30'000};

std::string first_line(const char* text) { return std::string(text).substr(0, std::string(text).find('\n')); }

StorePtr connect(const World& world, milliseconds timeout, bool server) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(world.port);
  options.isServer = server;
  options.numWorkers = static_cast<size_t>(world.size);
  options.waitWorkers = false;
  options.timeout = timeout;
  try {
    // torchrun's store may outlive a restart: each attempt has names of its own.
    return c10::make_intrusive<c10d::PrefixStore>(fmt::format("lazy/{}", world.restart),
                                                  c10::make_intrusive<c10d::TCPStore>(world.address, options));
  } catch (const std::exception& e) {
    fail_run("distributed", "no connection to the ranks' meeting point {}:{} (MASTER_ADDR, MASTER_PORT): {}",
             world.address, world.port, first_line(e.what()));
  }
}

// All ranks have set "KEY/RANK"; names those that have not.
void wait_for_all(c10d::Store& store, const World& world, const std::string& key, milliseconds timeout) {
  store.set(fmt::format("{}/{}", key, world.rank), std::string("1"));
  std::vector<std::string> keys;
  for (int rank = 0; rank < world.size; ++rank) keys.push_back(fmt::format("{}/{}", key, rank));
  try {
    store.wait(keys, timeout);
  } catch (const std::exception& e) {
    std::string missing;
    try {
      for (int rank = 0; rank < world.size; ++rank) {
        if (!store.check({keys[static_cast<size_t>(rank)]}))
          missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
      }
    } catch (const std::exception&) {
      missing = "0, which holds the store";
    }
    fail_run("distributed", "of {} ranks these have not come within {:.1f} s: {}", world.size,
             std::chrono::duration<double>(timeout).count(), missing.empty() ? first_line(e.what()) : missing);
  }
}

}  // namespace

struct Communicator::Impl {
  World world;
  at::Device device = at::kCPU;
  milliseconds timeout{};
  StorePtr store;
  std::unique_ptr<Watch> watch;
  std::unique_ptr<Agreement> agreement;
  BackendPtr backend;
  bool finished = false;

  // Without finish() something failed: collectives may be under way that never end, and so would their threads' owner.
  ~Impl() {
    if (!finished) backend.release();
  }
};

struct Communicator::Handle::Pending {
  c10::intrusive_ptr<c10d::Work> work;
  std::vector<at::Tensor> tensors;  // alive until the end
  Watch* watch = nullptr;
};

void Communicator::Handle::wait() {
  if (!pending_) return;
  const auto pending = std::exchange(pending_, nullptr);
  try {
    pending->work->wait();
  } catch (const std::exception& e) {
    pending->watch->explain(first_line(e.what()));
  }
}

Communicator::Communicator(World world, at::Device device, milliseconds timeout) : impl_(std::make_unique<Impl>()) {
  impl_->world = std::move(world);
  impl_->device = device;
  impl_->timeout = timeout;
  const World& w = impl_->world;
  if (w.size == 1) return;
  // c10d warns with a stack trace when a connection ends; what happened is said in one line here.
  if (!std::getenv("TORCH_CPP_LOG_LEVEL")) FLAGS_caffe2_log_level = c10::GLOG_ERROR;
  impl_->store = connect(w, timeout, w.rank == 0 && !w.agent_store);
  wait_for_all(*impl_->store, w, "came", timeout);
  const StorePtr beside = connect(w, timeout, false);  // for all threads but this one
  impl_->watch = std::make_unique<Watch>(beside, w, timeout);
  impl_->agreement = std::make_unique<Agreement>(beside, w, timeout, *impl_->watch);
  try {
    const Waiting waiting(*this, "the connections");
    const StorePtr store = c10::make_intrusive<c10d::PrefixStore>("group", impl_->store);
    const auto limit = timeout + kLater;
    impl_->backend = device.is_cuda() ? make_nccl(store, w, device, limit) : make_gloo(store, w, limit);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    impl_->watch->explain(first_line(e.what()));
  }
  barrier("the start");
}

Communicator::~Communicator() = default;
const World& Communicator::world() const { return impl_->world; }

namespace {

template <typename Begin>
std::shared_ptr<Communicator::Handle::Pending> start(Watch& watch, std::vector<at::Tensor> tensors, Begin&& begin) {
  auto pending = std::make_shared<Communicator::Handle::Pending>();
  pending->tensors = std::move(tensors);
  pending->watch = &watch;
  try {
    pending->work = begin(pending->tensors);
  } catch (const std::exception& e) {
    watch.explain(first_line(e.what()));
  }
  return pending;
}

}  // namespace

Communicator::Handle Communicator::all_reduce(at::Tensor tensor) {
  if (size() == 1) return {};
  return Handle(start(*impl_->watch, {std::move(tensor)}, [&](auto& t) { return impl_->backend->allreduce(t); }));
}

Communicator::Handle Communicator::reduce_scatter(at::Tensor part, at::Tensor whole) {
  if (size() == 1) {
    part.copy_(whole);
    return {};
  }
  return Handle(start(*impl_->watch, {std::move(part), std::move(whole)},
                      [&](auto& t) { return impl_->backend->_reduce_scatter_base(t[0], t[1]); }));
}

Communicator::Handle Communicator::all_gather(at::Tensor whole, at::Tensor part) {
  if (size() == 1) {
    whole.copy_(part);
    return {};
  }
  return Handle(start(*impl_->watch, {std::move(whole), std::move(part)},
                      [&](auto& t) { return impl_->backend->_allgather_base(t[0], t[1]); }));
}

Communicator::Handle Communicator::broadcast(at::Tensor tensor, int from) {
  if (size() == 1) return {};
  c10d::BroadcastOptions options;
  options.rootRank = from;
  return Handle(
      start(*impl_->watch, {std::move(tensor)}, [&](auto& t) { return impl_->backend->broadcast(t, options); }));
}

void Communicator::barrier(const char* what) {
  if (size() == 1) return;
  const Waiting waiting(*this, what);
  // A sum that arrives on the host: on a GPU, too, nothing is left to do then.
  const at::Tensor one = at::ones({1}, at::TensorOptions().device(impl_->device));
  all_reduce(one).wait();
  one.item<float>();
}

std::vector<double> Communicator::sum(const std::vector<double>& values) {
  if (size() == 1) return values;
  at::Tensor tensor = at::tensor(values, at::kDouble).to(impl_->device);
  all_reduce(tensor).wait();
  tensor = tensor.to(at::kCPU);
  return {tensor.const_data_ptr<double>(), tensor.const_data_ptr<double>() + tensor.numel()};
}

std::string Communicator::broadcast(const std::string& text) {
  if (size() == 1) return text;
  const auto bytes = static_cast<int64_t>(sum({first() ? static_cast<double>(text.size()) : 0}).front());
  if (bytes == 0) return {};
  at::Tensor tensor = at::zeros({bytes}, at::kByte);
  if (first()) std::memcpy(tensor.mutable_data_ptr(), text.data(), text.size());
  tensor = tensor.to(impl_->device);
  broadcast(tensor).wait();
  tensor = tensor.to(at::kCPU);
  return {static_cast<const char*>(tensor.const_data_ptr()), static_cast<size_t>(bytes)};
}

std::string Communicator::agree(const std::string& failure) {
  return impl_->agreement ? impl_->agreement->agree(failure) : failure;
}

Communicator::Waiting::Waiting(Communicator& communicator, const char* what) : communicator_(communicator) {
  if (communicator_.impl_->watch) communicator_.impl_->watch->wait_begins(what);
}
Communicator::Waiting::~Waiting() {
  if (communicator_.impl_->watch) communicator_.impl_->watch->wait_ends();
}

Communicator::Blocked::Blocked(Communicator& communicator) : communicator_(communicator) {
  if (communicator_.impl_->watch) communicator_.impl_->watch->blocked(true);
}
Communicator::Blocked::~Blocked() {
  if (communicator_.impl_->watch) communicator_.impl_->watch->blocked(false);
}

void Communicator::at_step(int64_t step) {
  if (impl_->watch) impl_->watch->at_step(step);
}

void Communicator::announce(const std::string& failure) noexcept {
  if (impl_->watch) impl_->watch->announce(failure);
}

void Communicator::finish() {
  if (size() == 1) return;
  barrier("the end");
  impl_->agreement.reset();
  impl_->watch.reset();
  // Rank 0 holds the store: it leaves last.
  const World& w = impl_->world;
  impl_->store->set(fmt::format("left/{}", w.rank), std::string("1"));
  if (w.rank == 0) wait_for_all(*impl_->store, w, "left", impl_->timeout);
  impl_->finished = true;
}

}  // namespace lazy::train
