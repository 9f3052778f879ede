// Precompiled for the rooms that use tensors. The dispatcher and custom autograd functions are in ops_pch.h: they would
// double what every file pays.
#pragma once
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/grad_mode.h>

#include "std_pch.h"
