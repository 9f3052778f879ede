// Decode's sequence of launches.
#pragma once
#include <algorithm>

#include "attention/cuda/decode_kernels.cuh"
#include "attention/cuda/decode_start.h"

namespace lazy::kernels::cuda::decoding {

template <typename Products>
void launch(Params p, cudaStream_t stream) {
  const int tiles = p.kv_heads * p.tiles;  // of a sequence
  const int blocks = (p.columns + kWarps * p.part - 1) / (kWarps * p.part), tiles_at_once = p.round_tiles;
  bool behind = false;  // an own kernel
  for (p.round_batch = 0; p.round_batch < p.batch; p.round_batch += p.round_sequences) {
    const int sequences = std::min(p.round_sequences, p.batch - p.round_batch);
    for (p.round_tile = 0; p.round_tile < tiles; p.round_tile += tiles_at_once) {
      p.round_tiles = std::min(tiles_at_once, tiles - p.round_tile);
      const auto grid = [&](int of_tile) {
        return dim3(static_cast<unsigned>(of_tile) * static_cast<unsigned>(p.round_tiles),
                    static_cast<unsigned>(sequences));
      };
      if (p.block_table) {
        start<make_scores<Products, true>>(p, grid(blocks), kThreads, kWarps * p.key_bytes, behind, stream);
      } else {
        start<make_scores<Products, false>>(p, grid(blocks), kThreads, kWarps * p.key_bytes, behind, stream);
      }
      if (p.apart) launch_states(p, sequences, stream);
      start<sum_values<Products>>(p, grid(p.most_spans), kThreads, kWarps * p.value_bytes, true, stream);
      behind = true;
    }
  }
  launch_sums(p, stream);
}

}  // namespace lazy::kernels::cuda::decoding
