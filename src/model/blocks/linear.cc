#include "model/blocks/linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "ops/dense_product.h"
#include "ops/rms_norm.h"
#include "ops/try_concat_view.h"

namespace lazy {

at::Tensor CastCache::get(const at::Tensor& master, at::ScalarType dtype) {
  if (master.scalar_type() == dtype) return master.detach();
  if (placed_ && cast_.scalar_type() == dtype) return cast_;
  const auto version = static_cast<int64_t>(master._version());
  if (!cast_.defined() || cast_.scalar_type() != dtype || version_ != version) {
    cast_ = master.detach().to(dtype);
    version_ = version;
    placed_ = false;
  }
  return cast_;
}

at::Tensor CastCache::place(const at::Tensor& master, at::ScalarType dtype) {
  cast_ = at::empty(master.sizes(), master.options().dtype(dtype).requires_grad(false));
  placed_ = true;
  return cast_;
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

// Computes x W^T for x (N, in) and W (out, in) in the dtype of x. W is the concatenation of `parts`, which are leaf
// tensors; they are inputs of the node so that each of them receives its rows of the gradient dW. The gradients of the
// outputs arrive as separate tensors and are used without concatenation, except in fp8, where they are quantized into
// one matrix.
struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static tensor_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& W, at::TensorList parts,
                             const NormOutput& input, bool last_apart, bool fp8, bool training) {
    const Factor factor = make_factor(x, fp8, true, training), weights = make_factor(W, fp8, true, false);
    if (fp8) {
      ctx->save_for_backward({factor.fp8.transposed, factor.fp8.scale, W});
    } else {
      const auto [kept, weight] = input.saved_for_backward();
      ctx->save_for_backward({weight.defined() ? kept : x, weight, W});
    }
    ctx->saved_data["fp8"] = fp8;
    ctx->saved_data["eps"] = input.eps;
    ctx->set_materialize_grads(false);
    std::vector<int64_t> rows;
    for (const at::Tensor& part : parts) rows.push_back(part.size(0));
    ctx->saved_data["rows"] = rows;
    if (rows.size() > 1 && last_apart && x.is_cuda()) {
      const int64_t last = rows.back(), others = W.size(0) - last;
      rows.pop_back();
      auto out = forward_product(factor, rows_of(weights, 0, others)).split_with_sizes(rows, 1);
      out.push_back(forward_product(factor, rows_of(weights, others, last)));
      return out;
    }
    const at::Tensor y = forward_product(factor, weights);
    if (rows.size() == 1) return {y};
    return y.split_with_sizes(rows, 1);
  }

  static tensor_list backward(AutogradContext* ctx, const tensor_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const std::vector<int64_t> rows = ctx->saved_data["rows"].toIntVector();
    const at::Tensor& W = saved[2];
    tensor_list out(6 + rows.size());
    if (ctx->saved_data["fp8"].toBool()) {
      tensor_list all = grads;
      for (size_t p = 0; p < rows.size(); ++p) {
        if (!all[p].defined()) all[p] = at::zeros({saved[0].size(1), rows[p]}, W.options());
      }
      const Factor d_y = make_gradient_factor(all, true, ctx->needs_input_grad(0), wants_part(ctx, rows.size()));
      if (ctx->needs_input_grad(0)) out[0] = input_gradient(d_y, make_factor(W, true, false, true));
      if (wants_part(ctx, rows.size()))
        give_parts(ctx, rows, weight_gradient(d_y, {.fp8 = {{}, saved[0], saved[1]}}), out);
      return out;
    }
    const at::Tensor x = recompute_norm(saved[0], saved[1], ctx->saved_data["eps"].toDouble());
    if (const at::Tensor d_y = ops::try_concat_view(grads, 1); d_y.defined()) {
      if (ctx->needs_input_grad(0)) out[0] = ops::dense_product(d_y, W.t());
      if (wants_part(ctx, rows.size())) give_parts(ctx, rows, weight_gradient({d_y}, {x}), out);
      return out;
    }
    int64_t begin = 0;
    for (size_t p = 0; p < rows.size(); ++p) {
      const at::Tensor W_p = W.narrow(0, begin, rows[p]), &dy = grads[p];
      begin += rows[p];
      if (!dy.defined()) continue;
      if (ctx->needs_input_grad(0)) {
        if (out[0].defined()) {
          ops::add_dense_product(out[0], dy, W_p.t());
        } else {
          out[0] = ops::dense_product(dy, W_p.t());
        }
      }
      if (ctx->needs_input_grad(2 + p)) out[2 + p] = weight_gradient({dy}, {x});
    }
    return out;
  }

 private:
  static bool wants_part(AutogradContext* ctx, size_t parts) {
    for (size_t p = 0; p < parts; ++p) {
      if (ctx->needs_input_grad(2 + p)) return true;
    }
    return false;
  }
  // Gives each part that requires a gradient the rows of dW that belong to it.
  static void give_parts(AutogradContext* ctx, const std::vector<int64_t>& rows, const at::Tensor& d_W,
                         tensor_list& gradients) {
    const auto parts = d_W.split_with_sizes(rows, 0);
    for (size_t p = 0; p < rows.size(); ++p) {
      if (ctx->needs_input_grad(2 + p)) gradients[2 + p] = parts[p];
    }
  }
  static Factor rows_of(const Factor& x, int64_t begin, int64_t count) {
    if (x.plain.defined()) return {x.plain.narrow(0, begin, count)};
    return {.fp8 = {x.fp8.rows.narrow(0, begin, count), {}, x.fp8.scale}};
  }
};

// Returns a b^T (M, N) in dtype `type` for a (M, K) and b (N, K), both in fp8. If `fast` is true, the kernel may round
// partial sums while it accumulates. Only forward products allow this; gradients do not.
at::Tensor fp8_product(const at::Tensor& a, const ops::Fp8Matrix& of_a, const at::Tensor& b, const ops::Fp8Matrix& of_b,
                       at::ScalarType type, bool fast) {
  return at::_scaled_mm(a, b.t(), of_a.scale, of_b.scale, {}, {}, type, fast);
}

}  // namespace

bool fits_fp8(const at::Tensor& x, at::TensorList parts) {
  const auto fits = [](int64_t size) { return size > 0 && size % ops::kFp8Multiple == 0; };
  return x.scalar_type() == at::kBFloat16 && fits(x.size(0)) && fits(x.size(1)) &&
         std::all_of(parts.begin(), parts.end(), [&](const at::Tensor& part) { return fits(part.size(0)); });
}

Factor make_factor(const at::Tensor& x, bool fp8, bool rows, bool transposed) {
  if (!fp8) return {x};
  return {.fp8 = ops::quantize_fp8({x}, at::kFloat8_e4m3fn, rows, transposed)};
}

Factor make_gradient_factor(at::TensorList d_y, bool fp8, bool rows, bool transposed) {
  if (!fp8) return {d_y[0]};
  return {.fp8 = ops::quantize_fp8(d_y, at::kFloat8_e5m2, rows, transposed)};
}

at::Tensor forward_product(const Factor& x, const Factor& W) {
  if (x.plain.defined()) return ops::dense_product(x.plain, W.plain);
  return fp8_product(x.fp8.rows, x.fp8, W.fp8.rows, W.fp8, at::kBFloat16, true);
}

at::Tensor input_gradient(const Factor& d_y, const Factor& W) {
  if (d_y.plain.defined()) return ops::dense_product(d_y.plain, W.plain.t());
  return fp8_product(d_y.fp8.rows, d_y.fp8, W.fp8.transposed, W.fp8, at::kBFloat16, false);
}

at::Tensor weight_gradient(const Factor& d_y, const Factor& x) {
  if (!x.plain.defined()) return fp8_product(d_y.fp8.transposed, d_y.fp8, x.fp8.transposed, x.fp8, at::kFloat, false);
  // On a GPU, the product can be written directly in fp32. On a CPU, the product is first rounded to the dtype of the
  // operands.
  if (x.plain.is_cuda() && x.plain.scalar_type() != at::kFloat) {
    at::Tensor dW = at::empty({d_y.plain.size(1), x.plain.size(1)}, x.plain.options().dtype(at::kFloat));
    at::mm_out(dW, d_y.plain.t(), x.plain, at::kFloat);
    return dW;
  }
  return ops::dense_product(d_y.plain.t(), x.plain.t()).to(at::kFloat);
}

Linear::Linear(int64_t in_features, const std::vector<int64_t>& out_features, at::Device device, bool last_apart)
    : last_apart_(last_apart) {
  int64_t total = 0;
  for (const int64_t n : out_features) total += n;
  packed_ = at::zeros({total, in_features}, at::TensorOptions().dtype(at::kFloat).device(device));
  int64_t begin = 0;
  for (const int64_t n : out_features) {
    parts_.push_back(packed_.narrow(0, begin, n).detach().requires_grad_(true));
    begin += n;
  }
}

void Linear::set_int8() const {
  const at::NoGradGuard guard;
  int8_ = ops::quantize_int8(packed_);
  packed_.copy_(ops::dequantize(int8_));
}

void Linear::round_weights(ops::Rounding rounding) const {
  const at::NoGradGuard guard;
  if (rounding.unit == ops::RoundingUnit::channel) rounding.unit = ops::RoundingUnit::token;
  std::vector<at::Tensor> values, scales;
  for (const at::Tensor& part : parts_) {
    const ops::Rounded r = ops::rounded(part.detach(), rounding);
    values.push_back(r.values);
    scales.push_back(r.scale.expand({part.size(0), 1}));
  }
  rounded_ = {at::cat(values), at::cat(scales)};
  packed_.copy_(rounded_.values * rounded_.scale);
}

at::Tensor Linear::product_of_rounded(const at::Tensor& x) const {
  if (rounded_.values.defined()) {
    const ops::Rounded of_x = ops::rounded(x, inputs_);
    if (ops::has_int8_product(of_x, rounded_)) return ops::int8_product(of_x, rounded_).to(x.scalar_type());
  }
  return ops::dense_product(ops::round_to_nearest(x, inputs_), matrix(x.scalar_type()));
}

bool Linear::decodes(const at::Tensor& x) const {
  return !at::GradMode::is_enabled() && !inputs_.used() && ops::supports_skinny_gemm(x);
}

at::Tensor Linear::decode(const at::Tensor& x) const {
  return int8_.defined() && x.is_cpu() ? ops::skinny_linear(x, int8_) : ops::skinny_linear(x, matrix(x.scalar_type()));
}

ops::SkinnyGemmInput Linear::pending_rows(const NormOutput& x) const {
  return {.x = x.from.reshape({-1, packed_.size(1)}), .norm_weight = x.weight.detach(), .eps = x.eps};
}

at::Tensor Linear::decode_pending(const NormOutput& x, bool swiglu, const Linear* next) const {
  const at::ScalarType type = x.from.scalar_type();
  ops::SkinnyGemmInput rows = pending_rows(x);
  if (next) rows.next_W = next->matrix(type);
  return ops::skinny_gemm(rows, matrix(type), swiglu);
}

at::Tensor Linear::decode_kv_cache_write(const NormOutput& x, const ops::PagePlaces& to) const {
  return ops::skinny_gemm_kv_cache_write(pending_rows(x), matrix(x.from.scalar_type()), to);
}

at::Tensor Linear::forward_add_residual(const at::Tensor& x, const at::Tensor& stream) const {
  const at::Tensor rows = x.reshape({-1, packed_.size(1)});
  if (!rows.is_cuda() || !decodes(rows)) return forward(x)[0] + stream;
  return ops::skinny_gemm({.x = rows, .add = stream.reshape({-1, packed_.size(0)})}, matrix(rows.scalar_type()))
      .view(stream.sizes());
}

void Linear::convert_weights_to(at::ScalarType dtype) const {
  const at::NoGradGuard guard;
  at::Tensor packed = packed_;  // a handle of the same tensor, so packed.set_data() also changes packed_
  packed.set_data(packed_.to(dtype));
  int64_t begin = 0;
  for (at::Tensor part : parts_) {
    const int64_t rows = part.size(0);
    part.set_data(packed.narrow(0, begin, rows));
    begin += rows;
  }
  cast_ = {};
}

std::vector<at::Tensor> Linear::forward(const NormOutput& x) const {
  std::vector<int64_t> shape = x.sizes().vec();
  std::vector<int64_t> rows;
  for (const at::Tensor& part : parts_) rows.push_back(part.size(0));
  tensor_list out;
  if (x.pending) {
    out = decode_pending(x).split_with_sizes(rows, 1);
  } else {
    const at::Tensor flat = x.value.reshape({-1, packed_.size(1)});
    out = inputs_.used() ? product_of_rounded(flat).split_with_sizes(rows, 1)
          : decodes(flat)
              ? decode(flat).split_with_sizes(rows, 1)
              : LinearFunction::apply(flat, matrix(flat.scalar_type()), at::TensorList(parts_), x, last_apart_,
                                      fp8_ && fits_fp8(flat, parts_), at::GradMode::is_enabled());
  }
  for (at::Tensor& y : out) {
    shape.back() = y.size(1);
    y = y.view(shape);
  }
  return out;
}

}  // namespace lazy
