// Precompiled for files that use ATen's functions. The dispatcher and custom autograd functions are in ops_pch.h: they
// would double what every file pays.
#pragma once
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tensor_pch.h"
