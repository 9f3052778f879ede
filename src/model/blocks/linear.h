// Linear layers without bias, and cached conversions of weights to the compute dtype.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "model/blocks/norm.h"
#include "ops/kv_cache_write.h"
#include "ops/quantize_fp8.h"
#include "ops/round_to_nearest.h"
#include "ops/skinny_gemm.h"

namespace lazy {

// Caches the conversion of a master weight (fp32) to the compute dtype. The class is not thread-safe. The converted
// tensor does not require a gradient, because the autograd function that uses it returns the gradient of the master
// weight.
class CastCache {
 public:
  at::Tensor get(const at::Tensor& master, at::ScalarType dtype);
  // Allocates an uninitialized tensor with the shape of `master` in `dtype`. From then on, get() returns this tensor
  // without checking whether the master weight has changed; the caller must update its values.
  at::Tensor place(const at::Tensor& master, at::ScalarType dtype);

 private:
  at::Tensor cast_;
  int64_t version_ = -1;
  bool placed_ = false;
};

// Computes y_p = x W_p^T for each part p as one matrix product with the packed W (sum of out_features, in_features).
// The parts are separate fp32 leaf tensors that are views of one storage: the optimizer and checkpoints see q_proj,
// k_proj and v_proj, while the device computes one product. It is not thread-safe: the conversion of W to compute dtype
// is cached until W changes.
class Linear {
 public:
  Linear() = default;
  // If `last_apart` is true, a GPU computes the last part as a separate matrix product. The outputs of the other parts
  // can then be freed while the output of the last part is still in use.
  Linear(int64_t in_features, const std::vector<int64_t>& out_features, at::Device device, bool last_apart = false);

  const std::vector<at::Tensor>& parts() const { return parts_; }
  // If `fp8` is true, products with compute dtype bf16 are computed in fp8 where fits_fp8() returns true. Default:
  // false.
  void set_fp8(bool fp8) const { fp8_ = fp8; }
  bool fp8() const { return fp8_; }
  // Rounds W in place to int8 with one scale per row. Decoding on a CPU then reads the int8 matrix (ops/skinny_gemm.h).
  void set_int8() const;
  // Rounds W in place to rounding.bits bits. Each part has one scale; with RoundingUnit::channel or
  // RoundingUnit::token, each row of W has a separate scale.
  void round_weights(ops::Rounding rounding) const;
  // From this call on, the inputs x are rounded before each product. This supports only inference. If W was rounded by
  // round_weights() and LibTorch supports the sizes, the product is computed with integer arithmetic.
  void set_input_rounding(const ops::Rounding& rounding) const { inputs_ = rounding; }
  bool rounds_inputs() const { return inputs_.used(); }
  // Returns W in the compute dtype. The result does not require a gradient.
  at::Tensor matrix(at::ScalarType dtype) const { return cast_.get(packed_, dtype); }
  // Allocates an uninitialized tensor that matrix(dtype) returns from now on; the caller must write W to it after each
  // change of W. `dtype` must differ from the dtype of the parts.
  at::Tensor place_matrix(at::ScalarType dtype) const { return cast_.place(packed_, dtype); }
  // Maps x (..., in) in the compute dtype to one output (..., out_features[p]) per part p. The outputs are column
  // slices of one tensor, so with several parts their rows are not contiguous.
  std::vector<at::Tensor> forward(const NormOutput& x) const;
  // True if x (N, in) is small enough for the skinny GEMM of decoding (ops/skinny_gemm.h) and gradients are disabled.
  // decode(x) then returns the product, (N, sum of out_features).
  bool decodes(const at::Tensor& x) const;
  at::Tensor decode(const at::Tensor& x) const;
  // Requires x.pending. Returns y = rms_norm(x.from) W^T, where the GEMM kernel also computes the norm. If `swiglu` is
  // true, returns silu(y_1) * y_2 instead, where y_1 and y_2 are the first and the second half of the columns of y.
  // `next` is the linear layer that runs next; the kernel prefetches its weights into the L2 cache.
  at::Tensor decode_pending(const NormOutput& x, bool swiglu = false, const Linear* next = nullptr) const;
  // For a Linear whose parts are q_proj, k_proj and v_proj: computes q, k and v as decode_pending does, applies RoPE to
  // q and k, and writes k and v to the pages of the KV cache that `to` describes (ops/kv_cache_write.h). Returns the
  // rotated q.
  at::Tensor decode_kv_cache_write(const NormOutput& x, const ops::PagePlaces& to) const;
  // For a Linear with one part: returns x W^T + stream, shape (..., out). On a GPU with small batches the addition is
  // fused into the skinny GEMM.
  at::Tensor forward_add_residual(const at::Tensor& x, const at::Tensor& stream) const;
  // Converts the weights to `dtype` and frees the fp32 weights. Afterwards, the layer supports only inference.
  void convert_weights_to(at::ScalarType dtype) const;

 private:
  at::Tensor packed_;              // W, the concatenation of all parts; does not require a gradient
  std::vector<at::Tensor> parts_;  // leaf tensors, which are views of packed_
  bool last_apart_ = false;
  mutable CastCache cast_;
  mutable bool fp8_ = false;
  mutable ops::Int8Matrix int8_;
  mutable ops::Rounding inputs_;
  mutable ops::Rounded rounded_;  // the rounded W as integers and scales; undefined unless round_weights() was called

  at::Tensor product_of_rounded(const at::Tensor& x) const;
  ops::SkinnyGemmInput pending_rows(const NormOutput& x) const;
};

// One operand of a matrix product: either the unquantized matrix or its fp8 version.
struct Factor {
  at::Tensor plain;    // the unquantized operand; undefined if the operand is in fp8
  ops::Fp8Matrix fp8;  // the quantized operand, in the layouts that the products below read
};
// True if the products of x (N, in) with the parts W_p (out_p, in), and their gradients, can be computed in fp8.
// This requires bf16 and sizes that are multiples of 16.
bool fits_fp8(const at::Tensor& x, at::TensorList parts);
// Prepares x, an input or a weight matrix, as an operand: quantizes x to e4m3 if `fp8` is true, otherwise uses x
// itself. `rows` and `transposed` select the layouts of ops::Fp8Matrix to create.
Factor make_factor(const at::Tensor& x, bool fp8, bool rows, bool transposed);
// Like make_factor, for gradients, which are quantized to e5m2. The tensors of `d_y` are concatenated along the
// columns. Without fp8, `d_y` must have exactly one tensor.
Factor make_gradient_factor(at::TensorList d_y, bool fp8, bool rows, bool transposed);

// The product y = x W^T and its gradients. The two operands must both be unquantized or both be in fp8. The comment of
// each function gives the shape of its result and the fp8 layouts that it reads.
at::Tensor forward_product(const Factor& x, const Factor& W);    // (N, out); reads x.fp8.rows and W.fp8.rows
at::Tensor input_gradient(const Factor& d_y, const Factor& W);   // (N, in); reads d_y.fp8.rows and W.fp8.transposed
at::Tensor weight_gradient(const Factor& d_y, const Factor& x);  // (out, in) fp32; reads fp8.transposed of d_y and x

}  // namespace lazy
