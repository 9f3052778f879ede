// Mask@k, part (a) of Figure 2: a model for each position k at which every training sequence holds the same token.
#pragma once
#include <string>
#include <vector>

#include "repro/recipe.h"

namespace lazy::repro {

void plan_masks(Plan& plan, const Scale& scale);
std::vector<Finding> judge_masks(const Conditions& conditions, const Results& results);
std::string mask_pictures(const Results& results);
extern const char* const kMaskNote;

}  // namespace lazy::repro
