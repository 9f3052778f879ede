// The one check that every tokenizer makes of the ids it is given.
#pragma once
#include <cstdint>

#include "core/error.h"

namespace lazy {

inline void check_id(int32_t id, int64_t vocab_size) {
  if (id < 0 || id >= vocab_size) {
    fail("tokenizer", "id {} is out of range: expected 0 to {}", id, vocab_size - 1);
  }
}

}  // namespace lazy
