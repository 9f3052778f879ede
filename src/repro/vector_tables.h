// Tables 4 to 7 of the paper: norms and variances of queries, keys, values or hidden states, token by token. The paper
// does not print layer and head, so the nearest of all measured rows is used. For BLOOM, the search also covers the
// fused projection cut into three blocks of heads, where block h of each belongs to a different head.
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

// `values` is the result of the experiment `vectors`. `printed` contains norms and variances of Q, K and V, or norm and
// variance of hidden states.
RowMatch nearest_row(const Json& values, const std::vector<double>& printed);
std::vector<double> table_row(const Json& values, const char* input, size_t layer, size_t head, size_t position,
                              bool hidden, bool cut);

}  // namespace lazy::repro
