// Precompiled header of the sources that use ATen. It does not include the headers of the dispatcher and of autograd:
// only operators use them, and they would double the compile time that the precompiled header adds to every file.
#pragma once
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/grad_mode.h>

#include "std_pch.h"
