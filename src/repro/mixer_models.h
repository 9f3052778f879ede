// The systems of Table 1 that are not attention, at every scale.
#pragma once
#include <vector>

#include "repro/step.h"

namespace lazy::repro {

// Below paper scale the seven of the table, the MLP (Mamba2: the depth) such that a model has as many parameters as
// Transformer++ at that scale, within 3 %. At paper scale the shipped configurations of the sizes that the table has
// rows of, named after them where they are 760M ("retnet-760m").
std::vector<Model> mixer_models(const Scale& scale);

}  // namespace lazy::repro
