// Tests the products of dense matrices: their values, and their behavior while signals arrive.
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

// Compares bf16 products a b^T with fp64 products of the same matrices. The tolerance is one bf16 rounding. The shapes
// cover small and large numbers of rows, matrices b that fit in one block and that need several, and a strided operand.
TEST(DenseProduct, Bf16Product_IsRoundedOnce) {
  struct Shape {
    int64_t m, n, k;
  };
  for (const auto& [m, n, k] : {Shape{3, 70, 40}, Shape{64, 33, 96}, Shape{130, 257, 1000}, Shape{65, 9000, 1100}}) {
    const at::Tensor a = at::randn({m, k}).to(at::kBFloat16), b = at::randn({k, n}).to(at::kBFloat16).t();
    const at::Tensor exact = at::mm(a.to(at::kDouble), b.to(at::kDouble).t()), y = dense_product(a, b);
    ASSERT_EQ(y.scalar_type(), at::kBFloat16);
    ASSERT_EQ(y.sizes(), exact.sizes());
    const double size = exact.abs().max().item<double>();
    EXPECT_TRUE(at::allclose(y.to(at::kDouble), exact, 0x1p-8, 1e-5 * size)) << m << " x " << n << " x " << k;
  }
}

// For inner dimensions above 84, the oneDNN kernel moves the stack pointer into the heap. Without use_signal_stack(),
// one of about the first thousand signals would crash this test in malloc() or free().
TEST(DenseProduct, Signals_DoNotCorruptHeap) {
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
