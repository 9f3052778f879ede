// In place of CUDA's: what the headers of Hopper's kernels name.
#pragma once
struct CUtensorMap {};
