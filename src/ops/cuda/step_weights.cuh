// Code of the warp of each block that loads the weights in the fused decode kernel (fused_decode_layers.cuh).
#pragma once
#include "ops/cuda/fused_decode_layers.cuh"

namespace lazy::ops::cuda::step {

// Prefetches the inputs of a layer, except for matrices and keys, to the L2 cache. Each block prefetches some of the
// arrays.
__device__ inline void ask_for_vectors(const Layers& s, const FusedDecodeLayer& l) {
  const int heads = s.attention.heads, blocks = gridDim.x;
  const auto vector = [&](int n, const float* from, int count) {
    if (from && static_cast<int>(blockIdx.x) == n % blocks) kernels::cuda::prefetch_bytes(from, count / 4 * 16);
  };
  vector(0, l.norm, s.hidden);
  vector(1, l.mlp_norm, s.hidden);
  vector(2, l.distance_bias, heads * s.attention.bias_window);
  vector(3, l.tau, heads);
  vector(4, l.sink, heads);
  vector(5, l.alibi_slopes, heads);
}

// Loads the weights of this block for all layers to the ring buffer, unit by unit (a unit is a group of matrix rows).
// Each lane loads one row of a unit.
template <typename T, int D>
__device__ void bring_weights(const Layers& s, StepShared<D>& shared, char* ring) {
  const int lane = threadIdx.x % 32, blocks = gridDim.x;
  RingSlot slot;
  for (int layer = 0; layer < s.count; ++layer) {
    if (lane == 0 && layer + 1 < s.count) ask_for_vectors(s, s.layers[layer + 1]);
    for (const MatrixKind kind : {MatrixKind::heads, MatrixKind::output, MatrixKind::gate_up, MatrixKind::down}) {
      const Matrix m = matrix_of(s, s.layers[layer], kind);
      const int rows = rows_of(kind), columns = columns_of(kind), pitch = pitch_of(kind);
      for (int first = first_unit(kind); first < m.units; first += kUnits * blocks) {
        const int end = min(m.units, first + kUnits * blocks);
        for (int column = 0; column < m.in; column += columns) {
          const int bytes = 2 * min(columns, m.in - column);
          for (int unit = first; unit < end; unit += blocks) {
            kernels::cuda::barrier_wait(&shared.empty[slot.number], slot.round ^ 1);
            if (lane == 0) kernels::cuda::barrier_expect(&shared.full[slot.number], rows * bytes);
            __syncwarp();
            if (lane < rows) {
              const auto* const row = static_cast<const T*>(m.W) + int64_t{row_of_unit(s, kind, unit, lane)} * m.in;
              kernels::cuda::copy_bytes(ring + slot.number * kSlotBytes + lane * pitch, row + column, bytes,
                                        &shared.full[slot.number]);
            }
            slot.advance(s.slots);
          }
        }
      }
    }
  }
}

}  // namespace lazy::ops::cuda::step
