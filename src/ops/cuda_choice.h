// Which kernel serves a problem on the current GPU: set by the library of the CUDA operators when it is loaded.
#pragma once
#include <string>

#include "lazy/kernel_table.h"

namespace lazy::ops {

// The kernel's name: "plain", "portable", "hopper".
using CudaChoice = std::string (*)(const kernels::Problem& problem);
CudaChoice cuda_choice();                 // null until the library is loaded
void set_cuda_choice(CudaChoice choice);  // called by the library

}  // namespace lazy::ops
