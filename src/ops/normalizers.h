// The table of normalizers for the layers above the operators: names, families and parameters.
#pragma once
#include "lazy/normalizers.h"

namespace lazy::ops {

using kernels::find_traits;
using kernels::kAllNormalizers;
using kernels::kNormalizers;
using kernels::name;
using kernels::Normalizer;
using kernels::normalizer_from_name;
using kernels::NormalizerFamily;
using kernels::NormalizerTraits;
using kernels::traits;

}  // namespace lazy::ops
