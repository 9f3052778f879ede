// What the fast kernels serve, and the names that errors use.
#include "lazy/attention.h"

namespace lazy::kernels {

const char* name(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return "float64";
    case DType::f32:
      return "float32";
    case DType::bf16:
      return "bfloat16";
    case DType::f16:
      return "float16";
  }
  return "?";
}

const char* name(Normalizer normalizer) {
  switch (normalizer) {
    case Normalizer::softmax:
      return "softmax";
    case Normalizer::elastic:
      return "elastic";
    case Normalizer::sparsemax:
      return "sparsemax";
    case Normalizer::entmax15:
      return "entmax15";
    case Normalizer::sigmoid:
      return "sigmoid";
    case Normalizer::softmax_sink:
      return "softmax_sink";
  }
  return "?";
}

std::string unmet_condition(const Problem& p) {
  if (p.dtype == DType::f64) return "the fast kernels take float32, bfloat16 or float16, received float64";
  return {};
}

}  // namespace lazy::kernels
