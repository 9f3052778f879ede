// A separate stack for signal handlers on threads that call oneDNN.
#pragma once
#include <csignal>
#include <cstddef>
#include <vector>

namespace lazy::ops {

// oneDNN before pull request 4855 (issue 4845), and therefore PyTorch 2.11, computes some fp32 products with the stack
// pointer in the middle of the heap. A signal handler that runs at this time overwrites other objects. This function
// gives the calling thread an alternate stack for handlers that are installed with SA_ONSTACK, such as the handlers of
// install_stop_handlers() and of Python. Linux delivers the signals of a process to its main thread if possible.
// If the thread already has an alternate stack, it is kept.
inline void use_signal_stack() {
  struct Stack {
    std::vector<std::byte> memory;
    Stack() {
      stack_t current{};
      if (::sigaltstack(nullptr, &current) != 0 || !(current.ss_flags & SS_DISABLE)) return;
      memory.resize(size_t{64} << 10);  // a signal frame stores all registers: 11 KiB with AMX
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
