// Precompiled for sources that use ATen. The dispatcher's and autograd's headers are not in it: they would double what
// every file pays, and only operators include them.
#pragma once
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/grad_mode.h>

#include "std_pch.h"
