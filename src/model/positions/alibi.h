// ALiBi (Press et al. 2021): the score falls linearly with the distance, by a slope of each head's own.
#pragma once
#include <cstdint>
#include <vector>

namespace lazy {

// With n the largest power of 2 up to heads: 2^(-8 r / n) for r = 1 ... n, then the odd powers of the sequence of 2n
// heads (SPEC section 2).
std::vector<double> alibi_slopes(int64_t heads);

}  // namespace lazy
