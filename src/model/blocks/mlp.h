// SwiGLU's feed-forward half of a layer (Shazeer 2020, arXiv 2002.05202): down(silu(gate(x)) up(x)), as one node of the graph
// that keeps no more for the backward pass than it must.
#pragma once
#include "model/blocks/linear.h"

namespace lazy {

// x (..., in) -> (..., out). Of the products and of what SwiGLU makes of them a CPU keeps all, a GPU the products; with
// `recompute` neither is kept, and the backward pass computes both again.
at::Tensor mlp(const Linear& gate_up, const Linear& down, const Normalized& x, bool recompute);

}  // namespace lazy
