// Loads the CUDA operators. They are in a separate library, liblazy_ops_cuda.so in the directory of liblazy_ops.so,
// because the CUDA libraries of PyTorch (gigabytes, one second to load) are needed only with a GPU. In a process that
// has already loaded these libraries, such as Python after `import torch`, loading liblazy_ops.so registers the
// operators. Other programs call load_cuda().
#pragma once
#include <filesystem>

namespace lazy::ops {

// Loads the CUDA libraries of PyTorch and the CUDA operators; later calls do nothing. Throws a std::runtime_error that
// says what is missing: a GPU, a library, or CUDA kernels in this build.
void load_cuda();

// Returns the path of a library that is loaded at run time from the directory of liblazy_ops.so.
std::filesystem::path library_beside(const char* name);

}  // namespace lazy::ops
