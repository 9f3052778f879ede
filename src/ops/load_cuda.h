// Loading of the CUDA operators. They are in a separate library, liblazy_ops_cuda.so beside liblazy_ops.so, because
// PyTorch's CUDA libraries (gigabytes, a second to load) are needed only with a GPU. In a process that has loaded them,
// such as Python after `import torch`, loading liblazy_ops.so registers the operators; others call load_cuda().
#pragma once
#include <filesystem>

namespace lazy::ops {

// Loads PyTorch's CUDA libraries and the CUDA operators, once. Throws std::runtime_error that says what is missing: a
// GPU, a library, or CUDA kernels in this build.
void load_cuda();

// Path of a library that is loaded at run time, beside liblazy_ops.so.
std::filesystem::path library_beside(const char* name);

}  // namespace lazy::ops
