// The vector code's entry points; each chooses the best instruction set at run time.
#pragma once
#include "attention/cpu/block.h"

namespace lazy::kernels::cpu {

// Fills what `packed` points to for the keys [begin, end); begin is a multiple of kKeyChunk.
void pack_keys(const Problem& p, const ConstView& k, const ConstView& v, const Sequence& s, int64_t kv_head,
               int64_t begin, int64_t end, const PackedKeys& packed);
void forward_block(const Problem& p, const Forward<float>& a, const RowBlock& block, const HeadParameters& head,
                   const PackedKeys& packed, float* scratch);
void backward_block(const Problem& p, const Backward<float>& a, const RowBlock& block, const HeadParameters& head,
                    const PackedKeys& packed, const GradientSlab& slab, float* scratch);
// Adds `slabs` arrays of keys rows in order and stores rows [begin, end) times `scale`.
void store_sum(DType dtype, const float* const* slabs, size_t count, size_t stride, int64_t begin, int64_t end,
               size_t dim, float scale, const View& out, int64_t batch, int64_t first_token, int64_t head);

}  // namespace lazy::kernels::cpu
