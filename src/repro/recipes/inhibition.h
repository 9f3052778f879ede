// The findings about inhibition of return that Figures 4, 8 and 9 share (decision A19).
#pragma once
#include <string>
#include <vector>

#include "repro/results.h"

namespace lazy::repro {

// One for the upper layers (the paper's claim), then the share of heads in each layer.
std::vector<Finding> inhibition_findings(const Results& results, const std::string& model, const std::string& row);

}  // namespace lazy::repro
