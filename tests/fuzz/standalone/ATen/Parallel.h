// Stands for LibTorch's header where only the parsing of a command line is built.
#pragma once
namespace at {
inline int get_num_threads() { return 1; }
}  // namespace at
