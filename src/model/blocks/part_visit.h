// The places in a model's graph where a part of it begins and ends, for its hooks: in the backward pass it is the other
// way round.
#pragma once
#include <optional>

#include "model/blocks/decoder_block.h"
#include "model/parts.h"

namespace lazy {

// The same stream. `part` follows, and then `next`; in the backward pass the gradients of all its parameters are there
// when this place is reached. `hooks` may be null.
Stream run_pre_forward_hooks(ShardHooks* hooks, size_t part, std::optional<size_t> next, Stream stream);
// The same stream. `part` is behind; in the backward pass it follows, and then `previous`.
Stream run_post_forward_hooks(ShardHooks* hooks, size_t part, std::optional<size_t> previous, Stream stream);

}  // namespace lazy
