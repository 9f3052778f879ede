// Tables 4 to 7 of the paper: norms and variances of queries, keys, values or hidden states, token by token. Layer and
// head are not printed: the nearest row of all is taken, for BLOOM also with its fused projection cut into three blocks
// of heads, where block h of each belongs to another head.
#pragma once
#include <string>
#include <vector>

#include "repro/plan.h"

namespace lazy::repro {

struct RowMatch {
  size_t layer = 0, head = 0;
  bool cut = false;
  double distance = 1e300;
};

// `values`: of the experiment `vectors`. `printed`: Q, K, V norms and variances, or of hidden states norm and variance.
RowMatch nearest_row(const Json& values, const std::vector<double>& printed);
std::vector<double> table_row(const Json& values, const char* input, size_t layer, size_t head, size_t position,
                              bool hidden, bool cut);

}  // namespace lazy::repro
