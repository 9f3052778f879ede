// Precompiled for files that use tensors through their methods.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/grad_mode.h>

#include "json_pch.h"
