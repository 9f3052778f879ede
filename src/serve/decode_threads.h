// Threads of decoding on the CPU.
#pragma once
#include <ATen/Parallel.h>

#include "model/config.h"
#include "model/language_model.h"

namespace lazy {

// While it lives, small models decode on one thread. A token's matrix products take microseconds each, so that
// synchronizing a second thread costs as much as it saves, and far more on a busy machine.
class DecodeThreads {
 public:
  explicit DecodeThreads(const LanguageModel& model) : before_(at::get_num_threads()) {
    constexpr int64_t kSmall = 8'000'000;  // parameters; 32 MB, about a core's share of the caches
    if (model.device().is_cpu() && count_parameters(model.config()).total <= kSmall) at::set_num_threads(1);
  }
  ~DecodeThreads() {
    if (at::get_num_threads() != before_) at::set_num_threads(before_);
  }
  DecodeThreads(const DecodeThreads&) = delete;
  DecodeThreads& operator=(const DecodeThreads&) = delete;

 private:
  int before_;
};

}  // namespace lazy
