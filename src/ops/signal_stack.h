// A stack of its own for signal handlers, on threads that call oneDNN.
#pragma once
#include <csignal>
#include <cstddef>
#include <vector>

namespace lazy::ops {

// oneDNN before its pull request 4855 (issue 4845), and so PyTorch 2.11, computes some products in fp32 with the stack
// pointer in the middle of the heap: a signal handler that runs there overwrites other objects. The calling thread gets
// a stack for handlers that are installed with SA_ONSTACK, as those of install_stop_handlers() and of Python are. The
// kernel sends a process's signals to its main thread first. A stack that the thread has already is kept.
inline void use_signal_stack() {
  struct Stack {
    std::vector<std::byte> memory;
    Stack() {
      stack_t current{};
      if (::sigaltstack(nullptr, &current) != 0 || !(current.ss_flags & SS_DISABLE)) return;
      memory.resize(size_t{64} << 10);  // a frame holds the registers: 11 KiB with AMX
      stack_t own{};
      own.ss_sp = memory.data();
      own.ss_size = memory.size();
      ::sigaltstack(&own, nullptr);
    }
    ~Stack() {
      stack_t current{};
      if (::sigaltstack(nullptr, &current) != 0 || current.ss_sp != memory.data()) return;
      stack_t none{};
      none.ss_flags = SS_DISABLE;
      ::sigaltstack(&none, nullptr);
    }
  };
  thread_local Stack stack;
}

}  // namespace lazy::ops
