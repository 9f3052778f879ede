// Linear layers without bias, and cached casts of weights to the compute dtype.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "model/blocks/norm.h"
#include "ops/few_rows.h"
#include "ops/quantize_fp8.h"
#include "ops/rope_to_pages.h"
#include "ops/round_to_nearest.h"

namespace lazy {

// Not thread-safe. The result does not require a gradient: the caller's autograd function assigns the gradient to the
// master weight.
class CastCache {
 public:
  at::Tensor get(const at::Tensor& master, at::ScalarType dtype);
  // Allocates an uninitialized copy in `dtype`. From now on `get` returns it without comparing it with the master: the
  // caller keeps it up to date.
  at::Tensor place(const at::Tensor& master, at::ScalarType dtype);

 private:
  at::Tensor cast_;
  int64_t version_ = -1;
  bool placed_ = false;
};

// y_p = x W_p^T for each part p, as one matrix product with W (sum of out_features, in_features). The parts are
// separate fp32 leaves that are views of one storage: the optimizer and checkpoints see q_proj, k_proj and v_proj, the
// device computes one product. Not thread-safe: the cast of W to the compute dtype is cached until W changes.
class Linear {
 public:
  Linear() = default;
  // last_apart: on a GPU the last part is computed as a separate product, so that the memory of the others can be freed
  // before its own.
  Linear(int64_t in_features, const std::vector<int64_t>& out_features, at::Device device, bool last_apart = false);

  const std::vector<at::Tensor>& parts() const { return parts_; }
  // In bf16, products in 8-bit floating point where fits_fp8 says so. Default: off.
  void set_fp8(bool fp8) const { fp8_ = fp8; }
  bool fp8() const { return fp8_; }
  // Rounds W to 8-bit numbers with a scale a row, in place, and keeps them for decoding (ops/few_rows.h).
  void set_int8() const;
  // Rounds W to the nearest values in place; a unit is a part, or with "channel" and "token" a row.
  void round_weights(ops::Rounding rounding) const;
  // From now on inputs are rounded before the product: inference only. Products of integers where LibTorch has them.
  void set_input_rounding(const ops::Rounding& rounding) const { inputs_ = rounding; }
  bool rounds_inputs() const { return inputs_.used(); }
  // W in the compute dtype; does not require a gradient.
  at::Tensor matrix(at::ScalarType dtype) const { return cast_.get(packed_, dtype); }
  // The buffer of matrix(dtype), which the caller keeps up to date from now on. dtype differs from the parts' dtype.
  at::Tensor place_matrix(at::ScalarType dtype) const { return cast_.place(packed_, dtype); }
  // x (..., in) in the compute dtype -> one (..., out_features[p]) per part. The results are column views of one
  // tensor, so with several parts their rows are strided.
  std::vector<at::Tensor> forward(const NormOutput& x) const;
  // Whether x (N, in) is decoded: without gradients, few rows (ops/few_rows.h). Then this is its product, (N, all
  // out_features).
  bool decodes(const at::Tensor& x) const;
  at::Tensor decode(const at::Tensor& x) const;
  // The product of a pending norm; with swiglu that of the two parts. next: the layer behind it, whose weights memory
  // is asked for meanwhile.
  at::Tensor decode_pending(const NormOutput& x, bool swiglu = false, const Linear* next = nullptr) const;
  // Likewise, of parts q, k and v, which go to pages (ops/rope_to_pages.h). Returns q.
  at::Tensor decode_to_pages(const NormOutput& x, const ops::PagePlaces& to) const;
  // Of one part: x (..., in) -> its product + stream (..., out), in one pass where x is decoded on a GPU.
  at::Tensor onto_stream(const at::Tensor& x, const at::Tensor& stream) const;
  // From now on the weights are in `dtype` alone. For inference.
  void hold_in(at::ScalarType dtype) const;

 private:
  at::Tensor packed_;              // the shared storage; does not require a gradient
  std::vector<at::Tensor> parts_;  // leaves
  bool last_apart_ = false;
  mutable CastCache cast_;
  mutable bool fp8_ = false;
  mutable ops::Int8Matrix int8_;
  mutable ops::Rounding inputs_;
  mutable ops::Rounded rounded_;  // W's integers, undefined where it was not rounded

  at::Tensor product_of_rounded(const at::Tensor& x) const;
  ops::FewRowsInput pending_rows(const NormOutput& x) const;
};

// A factor of matrix products: as it is, or in 8-bit floating point.
struct Factor {
  at::Tensor plain;
  ops::Fp8Matrix fp8;  // plain is undefined; rows and transposed as the products below want them
};
// Whether products of x (N, in) with parts of W (out_p, in) and their gradients can be had in fp8: bf16, sizes that are
// multiples of 16.
bool fits_fp8(const at::Tensor& x, at::TensorList parts);
// e4m3: inputs and weights.
Factor make_factor(const at::Tensor& x, bool fp8, bool rows, bool transposed);
// e5m2: gradients, side by side. In full precision there is one.
Factor make_gradient_factor(at::TensorList d_y, bool fp8, bool rows, bool transposed);

// y = x W^T and its gradients. Both factors are plain, or both in fp8.
at::Tensor forward_product(const Factor& x, const Factor& W);    // (N, out); of x and W the rows
at::Tensor input_gradient(const Factor& d_y, const Factor& W);   // (N, in); rows, transposed
at::Tensor weight_gradient(const Factor& d_y, const Factor& x);  // (out, in) in fp32; transposed, transposed

}  // namespace lazy
