// Products of dense matrices while signals come.
#include "ops/dense_product.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

namespace lazy::ops {
namespace {
using namespace std::chrono_literals;

// With more than 84 numbers in an inner product oneDNN's kernel moved the stack pointer into the heap: without
// use_signal_stack() the first of about a thousand signals ends this test in malloc() or free().
TEST(DenseProduct, SignalsLeaveTheHeapAlone) {
  struct sigaction count {
  }, before{};
  static std::atomic<int> signals = 0;
  count.sa_handler = [](int) { ++signals; };
  count.sa_flags = SA_ONSTACK;
  sigaction(SIGUSR1, &count, &before);
  at::set_num_threads(1);
  const at::Tensor a = at::randn({172, 256}), b = at::randn({64, 256});
  const at::Tensor expected = dense_product(a, b);
  const auto main_thread = ::syscall(SYS_gettid);
  std::atomic<bool> ended = false;
  std::thread sender([&] {
    while (!ended) {
      ::syscall(SYS_tgkill, ::getpid(), main_thread, SIGUSR1);
      std::this_thread::sleep_for(20us);
    }
  });
  int different = 0;
  while (signals < 2000) different += at::equal(dense_product(a, b), expected) ? 0 : 1;
  ended = true;
  sender.join();
  sigaction(SIGUSR1, &before, nullptr);
  EXPECT_EQ(different, 0);
}

}  // namespace
}  // namespace lazy::ops
