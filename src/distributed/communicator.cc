#include "distributed/communicator.h"

#include <ATen/ATen.h>
#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdlib>
#include <cstring>

#include "core/error.h"
#include "core/text.h"
#include "distributed/backends.h"
#include "distributed/watchdog.h"

namespace lazy::distributed {

using std::chrono::milliseconds;

namespace {

// The backends time out this much later than the watchdog, so that the watchdog reports a failure first. The timeouts
// of the backends only cover failures that the watchdog cannot detect.
constexpr milliseconds kLater{30'000};

std::string first_line(const char* text) { return std::string(text).substr(0, std::string(text).find('\n')); }

StorePtr connect(const RankInfo& info, milliseconds timeout, bool server) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(info.master_port);
  options.isServer = server;
  options.numWorkers = static_cast<size_t>(info.size);
  options.waitWorkers = false;
  options.timeout = timeout;
  try {
    // The store of torchrun may outlive a restart, so each restart attempt uses a separate key prefix.
    return c10::make_intrusive<c10d::PrefixStore>(fmt::format("lazy/{}", info.restart_count),
                                                  c10::make_intrusive<c10d::TCPStore>(info.master_address, options));
  } catch (const std::exception& e) {
    fail_run("distributed", "cannot connect to the rendezvous store at {}:{} (MASTER_ADDR, MASTER_PORT): {}",
             info.master_address, info.master_port, first_line(e.what()));
  }
}

// Returns after all ranks have set the key "KEY/RANK". Throws RunError with the missing ranks after the timeout.
void wait_for_all(c10d::Store& store, const RankInfo& info, const std::string& key, milliseconds timeout) {
  store.set(fmt::format("{}/{}", key, info.rank), std::string("1"));
  std::vector<std::string> keys;
  for (int rank = 0; rank < info.size; ++rank) keys.push_back(fmt::format("{}/{}", key, rank));
  try {
    store.wait(keys, timeout);
  } catch (const std::exception& e) {
    std::string missing;
    try {
      for (int rank = 0; rank < info.size; ++rank) {
        if (!store.check({keys[static_cast<size_t>(rank)]}))
          missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
      }
    } catch (const std::exception&) {
      missing = "0, which hosts the store";
    }
    fail_run("distributed", "of {} ranks the following did not connect within {:.1f} s: {}", info.size,
             std::chrono::duration<double>(timeout).count(), missing.empty() ? first_line(e.what()) : missing);
  }
}

}  // namespace

struct Communicator::Impl {
  RankInfo info;
  at::Device device = at::kCPU;
  milliseconds timeout{};
  StorePtr store;
  std::unique_ptr<RankWatchdog> watchdog;
  std::unique_ptr<StoreBarrier> background_barrier;
  BackendPtr backend;
  bool finished = false;

  // If shutdown() was not called, a rank has failed. Collectives in flight may then never finish, and the destructor of
  // the backend would wait for their threads. The backend is therefore leaked.
  ~Impl() {
    if (!finished) backend.release();
  }
};

struct Communicator::Work::Pending {
  c10::intrusive_ptr<c10d::Work> work;
  std::vector<at::Tensor> tensors;  // kept alive until the collective has finished
  RankWatchdog* watchdog = nullptr;
};

void Communicator::Work::wait() {
  if (!pending_) return;
  const auto pending = std::exchange(pending_, nullptr);
  try {
    pending->work->wait();
  } catch (const std::exception& e) {
    pending->watchdog->diagnose_and_throw(first_line(e.what()));
  }
}

Communicator::Communicator(RankInfo info, at::Device device, milliseconds timeout) : impl_(std::make_unique<Impl>()) {
  impl_->info = std::move(info);
  impl_->device = device;
  impl_->timeout = timeout;
  const RankInfo& w = impl_->info;
  if (w.size == 1) return;
  // c10d logs a stack trace when a connection is closed. This class reports the failure in one line instead.
  if (!std::getenv("TORCH_CPP_LOG_LEVEL")) FLAGS_caffe2_log_level = c10::GLOG_ERROR;
  impl_->store = connect(w, timeout, w.rank == 0 && !w.agent_store);
  wait_for_all(*impl_->store, w, "came", timeout);
  const StorePtr background = connect(w, timeout, false);  // separate connection for background threads
  impl_->watchdog = std::make_unique<RankWatchdog>(background, w, timeout);
  impl_->background_barrier = std::make_unique<StoreBarrier>(background, w, timeout, *impl_->watchdog);
  try {
    const WaitScope waiting(*this, "the connection setup");
    const StorePtr store = c10::make_intrusive<c10d::PrefixStore>("group", impl_->store);
    const auto limit = timeout + kLater;
    impl_->backend = device.is_cuda() ? make_nccl(store, w, device, limit) : make_gloo(store, w, limit);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    impl_->watchdog->diagnose_and_throw(first_line(e.what()));
  }
  barrier("the start");
}

Communicator::~Communicator() = default;
const RankInfo& Communicator::info() const { return impl_->info; }

namespace {

template <typename Begin>
std::shared_ptr<Communicator::Work::Pending> start(RankWatchdog& watchdog, std::vector<at::Tensor> tensors,
                                                   Begin&& begin) {
  auto pending = std::make_shared<Communicator::Work::Pending>();
  pending->tensors = std::move(tensors);
  pending->watchdog = &watchdog;
  try {
    pending->work = begin(pending->tensors);
  } catch (const std::exception& e) {
    watchdog.diagnose_and_throw(first_line(e.what()));
  }
  return pending;
}

}  // namespace

Communicator::Work Communicator::all_reduce(at::Tensor tensor) {
  if (size() == 1) return {};
  return Work(start(*impl_->watchdog, {std::move(tensor)}, [&](auto& t) { return impl_->backend->allreduce(t); }));
}

Communicator::Work Communicator::reduce_scatter(at::Tensor output, at::Tensor input) {
  if (size() == 1) {
    output.copy_(input);
    return {};
  }
  return Work(start(*impl_->watchdog, {std::move(output), std::move(input)},
                    [&](auto& t) { return impl_->backend->_reduce_scatter_base(t[0], t[1]); }));
}

Communicator::Work Communicator::all_gather(at::Tensor output, at::Tensor input) {
  if (size() == 1) {
    output.copy_(input);
    return {};
  }
  return Work(start(*impl_->watchdog, {std::move(output), std::move(input)},
                    [&](auto& t) { return impl_->backend->_allgather_base(t[0], t[1]); }));
}

Communicator::Work Communicator::broadcast(at::Tensor tensor, int root) {
  if (size() == 1) return {};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  return Work(
      start(*impl_->watchdog, {std::move(tensor)}, [&](auto& t) { return impl_->backend->broadcast(t, options); }));
}

void Communicator::barrier(const char* what) {
  if (size() == 1) return;
  const WaitScope waiting(*this, what);
  // On a GPU, wait() does not block the host, so item() waits for the result.
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
  const auto bytes = static_cast<int64_t>(sum({is_rank0() ? static_cast<double>(text.size()) : 0}).front());
  if (bytes == 0) return {};
  at::Tensor tensor = at::zeros({bytes}, at::kByte);
  if (is_rank0()) std::memcpy(tensor.mutable_data_ptr(), text.data(), text.size());
  tensor = tensor.to(impl_->device);
  broadcast(tensor).wait();
  tensor = tensor.to(at::kCPU);
  return {static_cast<const char*>(tensor.const_data_ptr()), static_cast<size_t>(bytes)};
}

std::string Communicator::background_barrier(const std::string& failure) {
  return impl_->background_barrier ? impl_->background_barrier->wait(failure) : failure;
}

Communicator::WaitScope::WaitScope(Communicator& communicator, const char* what) : communicator_(communicator) {
  if (communicator_.impl_->watchdog) communicator_.impl_->watchdog->begin_wait(what);
}
Communicator::WaitScope::~WaitScope() {
  if (communicator_.impl_->watchdog) communicator_.impl_->watchdog->end_wait();
}

Communicator::JoinScope::JoinScope(Communicator& communicator) : communicator_(communicator) {
  if (communicator_.impl_->watchdog) communicator_.impl_->watchdog->begin_join();
}
Communicator::JoinScope::~JoinScope() {
  if (communicator_.impl_->watchdog) communicator_.impl_->watchdog->end_join();
}

void Communicator::set_step(int64_t step) {
  if (impl_->watchdog) impl_->watchdog->set_step(step);
}

void Communicator::report_failure(const std::string& failure) noexcept {
  if (impl_->watchdog) impl_->watchdog->report_failure(failure);
}

void Communicator::shutdown() {
  if (size() == 1) return;
  barrier("the end");
  impl_->background_barrier.reset();
  impl_->watchdog.reset();
  // Rank 0 hosts the store, so it must be the last rank to leave.
  const RankInfo& w = impl_->info;
  impl_->store->set(fmt::format("left/{}", w.rank), std::string("1"));
  if (w.rank == 0) wait_for_all(*impl_->store, w, "left", impl_->timeout);
  impl_->finished = true;
}

}  // namespace lazy::distributed
