// Makes the table of normalizers (names, families and parameters) available in lazy::ops.
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
