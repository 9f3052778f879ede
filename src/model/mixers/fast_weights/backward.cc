#include <optional>

#include "model/mixers/fast_weights/internal.h"
#include "model/mixers/fast_weights/kernels.h"

namespace lazy::fast_weights {

namespace {

using Tensors = std::vector<at::Tensor>;

void add(at::Tensor& sum, const at::Tensor& x) { sum = sum.defined() ? sum.add_(x) : x; }

class Backward {
 public:
  Backward(const FastWeights& in, const TensorSpec& spec, const SavedActivations& activations,
           const FastWeightsResult& d)
      : in_(in),
        spec_(spec),
        c_(activations),
        d_end_(d),
        last_(spec.layers - 1),
        updates_(in.q.size(0) - (spec.last_state ? 0 : 1)),
        W_(d.W),
        b_(d.b),
        S_(d.S) {
    for (auto* list : {&W_, &b_, &S_, &d_u_, &d_g_, &d_W_, &d_b_, &d_S_, &by_W_, &by_S_, &d_z_, &slope_, &bend_,
                       &stepped_, &momentum_stepped_})
      list->resize(spec.layers);
  }

  FastWeights run(const at::Tensor& d_out) {
    through_reading(d_out);
    prepare();
    for (int64_t chunk = in_.q.size(0) - 1; chunk >= 0; --chunk) through_chunk(chunk);
    finish();
    return d_;
  }

 private:
  // Backpropagates through the outputs of all chunks together. Computes the gradients with respect to q, to the state
  // at the start of each chunk, to the inputs u and the gradients g of every token, and to the read factors.
  void through_reading(const at::Tensor& d_out) {
    const Gelu act = gelu_of(spec_);
    at::Tensor d_y = d_out;
    for (size_t n = last_ + 1; n-- > 0;) {
      const at::Tensor a = n == 0 ? in_.q : act(c_.x[n - 1]), a_T = transposed(a);
      at::Tensor overlap = product(a, transposed(c_.u[n]));
      if (spec_.bias) overlap.add_(1);
      d_g_[n] = product(transposed(overlap * in_.read_steps), d_y).neg_();
      const at::Tensor d_steps = product(d_y, transposed(c_.g[n])).neg_();
      const at::Tensor d_overlap = d_steps * in_.read_steps;
      add(d_.read_steps, overlap.mul_(d_steps));
      d_u_[n] = product(transposed(d_overlap), a);
      at::Tensor d_a = product(d_overlap, c_.u[n]);
      // M is the weights W or the momentum S at the start of the chunk. The weights at each token contain the term
      // share * M, where `share` is read_keep or read_carry. The function returns the gradient with respect to M and
      // adds the gradient with respect to `share` to d_share.
      const auto through = [&](const at::Tensor& M, const at::Tensor& share, at::Tensor& d_share) {
        if (a.size(-1) < d_y.size(-1)) {  // multiply the per-token factors into the tensor with fewer columns
          const at::Tensor back = product(d_y, transposed(M));
          add(d_share, row_dot(back, a));
          d_a.addcmul_(back, share);
          return product(transposed(a * share), d_y);
        }
        add(d_share, row_dot(product(a, M), d_y));
        const at::Tensor shared = d_y * share;
        accumulate(d_a, shared, transposed(M));
        return product(a_T, shared);
      };
      if (spec_.momentum) {
        d_W_[n] = through(c_.W[n], in_.read_keep, d_.read_keep);
        d_S_[n] = through(c_.S[n], in_.read_carry, d_.read_carry);
      } else {
        accumulate(d_a, d_y, transposed(c_.W[n]));
        d_W_[n] = product(a_T, d_y);
      }
      if (spec_.bias) d_b_[n] = d_y.sum(-2, /*keepdim=*/true);
      d_y = n == 0 ? d_a : act.backward(d_a, c_.x[n - 1]);
    }
    d_.q = d_y;
  }

  // Computes, in one operation for all chunks, the tensors that through_chunk() needs and that do not depend on the
  // gradients from later chunks.
  void prepare() {
    const Gelu act = gelu_of(spec_);
    for (size_t n = 0; n <= last_; ++n) {
      d_z_[n] = at::empty_like(c_.g[n]);
      if (!from_inputs(n)) {
        const at::Tensor g = updating(c_.g[n]);
        by_W_[n] = at::empty_like(g);
        stepped_[n] = updating(in_.steps) * g;
        if (spec_.momentum) by_S_[n] = at::empty_like(g), momentum_stepped_[n] = updating(in_.momentum_steps) * g;
      }
      if (n == last_) break;
      slope_[n] = act.backward(at::ones({}, c_.z[n].options()).expand_as(c_.z[n]), c_.z[n]);
      bend_[n] = act.second(c_.z[n]).mul_(c_.t[n]);
    }
    if (spec_.norm) norm_.emplace(in_.norm_weight, c_.z[last_], in_.norm_bias - in_.target);
  }

  // Backpropagates through one chunk. On entry, W_, b_ and S_ contain the gradients with respect to the state after the
  // chunk; on return, they contain the gradients with respect to the state before the chunk.
  void through_chunk(int64_t chunk) {
    const auto at_chunk = [&](const at::Tensor& x) { return x.select(0, chunk); };
    for (size_t n = 0; n <= last_ && chunk < updates_; ++n) through_update(chunk, n);
    // Backpropagates through the backward pass of the inner loss, from the first layer to the last.
    for (size_t n = 0; n < last_; ++n) {
      const at::Tensor d_g = at_chunk(d_g_[n]), d_t = d_g * at_chunk(slope_[n]);
      at::Tensor d_z = at_chunk(d_z_[n]);
      at::mul_out(d_z, d_g, at_chunk(bend_[n]));
      at_chunk(d_g_[n + 1]).baddbmm_(d_t, at_chunk(c_.W[n + 1]));
      at_chunk(d_W_[n + 1]).baddbmm_(transposed(d_t), at_chunk(c_.g[n + 1]));
    }
    at::Tensor d_z = at_chunk(d_z_[last_]);
    if (norm_)
      d_z.copy_(norm_->by_z(chunk, at_chunk(d_g_[last_]), at_chunk(c_.g[last_])));
    else
      d_z.copy_(error_gradient_backward(at_chunk(c_.z[last_]), at_chunk(d_g_[last_])));
    // Backpropagates through the forward pass of the inner loss, from the last layer to the first.
    for (size_t n = last_ + 1; n-- > 0;) {
      d_z = at_chunk(d_z_[n]);
      at_chunk(d_W_[n]).baddbmm_(transposed(at_chunk(c_.u[n])), d_z);
      if (spec_.bias) at_chunk(d_b_[n]).add_(d_z.sum(-2, /*keepdim=*/true));
      if (n == 0) break;
      const at::Tensor d_u = at_chunk(d_u_[n]).baddbmm_(d_z, transposed(at_chunk(c_.W[n])));
      at_chunk(d_z_[n - 1]).addcmul_(d_u, at_chunk(slope_[n - 1]));
    }
    for (size_t n = 0; n <= last_; ++n) {
      W_[n] = at_chunk(d_W_[n]);
      if (spec_.bias) b_[n] = at_chunk(d_b_[n]);
      if (spec_.momentum) S_[n] = at_chunk(d_S_[n]);
    }
  }

  // True if finish() computes the gradient with respect to the step factors of layer n from the inputs of the layer, in
  // one operation for all chunks. This is the case for the first layer if its inputs have fewer columns than its
  // outputs.
  bool from_inputs(size_t n) const { return n == 0 && !spec_.bias && in_.W[0].size(-2) < in_.W[0].size(-1); }

  // Backpropagates through the weight update of one layer.
  void through_update(int64_t chunk, size_t n) {
    const auto at_chunk = [&](const at::Tensor& x) { return x.select(0, chunk); };
    const at::Tensor u = at_chunk(c_.u[n]);
    at::Tensor d_g = at_chunk(d_g_[n]);
    // M is the gradient with respect to the weights W or the momentum S after the chunk. The update of the chunk
    // subtracts sum_s share_s u_s^T g_s from W or S, where `share` is steps or momentum_steps. The function adds the
    // resulting gradients to d_g and d_u.
    const auto through = [&](const at::Tensor& M, const at::Tensor& b, const at::Tensor& share, const Tensors& stepped,
                             const Tensors& by) {
      if (from_inputs(n)) {
        d_g.baddbmm_(u * at_chunk(share), M, 1, -1);
        return;
      }
      at::Tensor by_M = at_chunk(by[n]);
      if (b.defined())
        at::baddbmm_out(by_M, b, u, M);
      else
        at::bmm_out(by_M, u, M);
      d_g.addcmul_(by_M, at_chunk(share), -1);
      // For n = 0, the input u is k, and through_first() computes its gradient.
      if (n > 0) at_chunk(d_u_[n]).baddbmm_(at_chunk(stepped[n]), transposed(M), 1, -1);
    };
    through(W_[n], spec_.bias ? b_[n] : at::Tensor(), in_.steps, stepped_, by_W_);
    if (!spec_.momentum) {
      at_chunk(d_W_[n]).add_(W_[n]);
      if (spec_.bias) at_chunk(d_b_[n]).add_(b_[n]);
      return;
    }
    through(S_[n], {}, in_.momentum_steps, momentum_stepped_, by_S_);
    at_chunk(d_W_[n]).addcmul_(W_[n], at_chunk(in_.keep));
    at_chunk(d_S_[n]).addcmul_(W_[n], at_chunk(in_.carry)).addcmul_(S_[n], at_chunk(in_.momentum_keep));
  }

  // Returns the entries of x for the chunks whose updated state is used. These are all chunks; if last_state is false,
  // the last chunk is excluded.
  at::Tensor updating(const at::Tensor& x) const { return x.narrow(0, 0, updates_); }

  // Calls use(first, count, gradients) for two ranges of chunks: all chunks but the last, and the last chunk.
  // `gradients` are the gradients with respect to the states after the chunks of the range. `all` contains the
  // gradients with respect to the state before each chunk, which is the state after the preceding chunk. at_the_end[n]
  // contains the gradient with respect to the state of layer n after the last chunk.
  template <typename Use>
  void by_what_was_left(const at::Tensor& all, const Tensors& at_the_end, size_t n, const Use& use) const {
    const int64_t C = all.size(0);
    if (C > 1) use(0, C - 1, all.narrow(0, 1, C - 1));
    if (spec_.last_state) use(C - 1, 1, at_the_end[n].unsqueeze(0));
  }

  // Computes, for the first layer, the gradient with respect to k and, if from_inputs(0) is true, the gradient with
  // respect to the step factors. `left` contains the gradients with respect to the states after some of the chunks;
  // part(x) selects these chunks from x.
  template <typename Part>
  void through_first(const Part& part, const at::Tensor& left, const at::Tensor& share, const at::Tensor& d_share,
                     const at::Tensor& stepped) {
    if (!from_inputs(0)) {
      accumulate(part(d_.k), part(stepped), transposed(left), -1);
      return;
    }
    const at::Tensor back = product(part(c_.g[0]), transposed(left));
    part(d_share).sub_(row_dot(part(c_.u[0]), back));
    part(d_.k).addcmul_(back, part(share), -1);
  }

  // Computes the gradients that through_chunk() leaves out, in one operation for all chunks.
  void finish() {
    d_.k = d_u_[0];
    accumulate(d_.k, d_z_[0], transposed(c_.W[0]));
    d_.steps = at::zeros_like(in_.steps);
    if (spec_.momentum) {
      for (const auto& [d, x] : {std::pair{&d_.keep, &in_.keep},
                                 {&d_.carry, &in_.carry},
                                 {&d_.momentum_keep, &in_.momentum_keep},
                                 {&d_.momentum_steps, &in_.momentum_steps}})
        *d = at::zeros_like(*x);
    }
    for (size_t n = 0; n <= last_; ++n) {
      if (!from_inputs(n)) updating(d_.steps).sub_(row_dot(updating(c_.g[n]), by_W_[n]));
      by_what_was_left(d_W_[n], d_end_.W, n, [&](int64_t first, int64_t count, const at::Tensor& left) {
        const auto part = [&](const at::Tensor& x) { return x.narrow(0, first, count); };
        if (n == 0) through_first(part, left, in_.steps, d_.steps, stepped_[0]);
        if (!spec_.momentum) return;
        part(d_.keep).add_(block_dot(part(c_.W[n]), left));
        part(d_.carry).add_(block_dot(part(c_.S[n]), left));
      });
      if (!spec_.momentum) continue;
      if (!from_inputs(n)) updating(d_.momentum_steps).sub_(row_dot(updating(c_.g[n]), by_S_[n]));
      by_what_was_left(d_S_[n], d_end_.S, n, [&](int64_t first, int64_t count, const at::Tensor& left) {
        const auto part = [&](const at::Tensor& x) { return x.narrow(0, first, count); };
        if (n == 0) through_first(part, left, in_.momentum_steps, d_.momentum_steps, momentum_stepped_[0]);
        part(d_.momentum_keep).add_(block_dot(part(c_.S[n]), left));
      });
    }
    d_.W = W_;
    if (spec_.bias) d_.b = b_;
    if (spec_.momentum) d_.S = S_;
    if (norm_) {
      d_.target = norm_->by_target(), d_.norm_weight = norm_->by_weight(), d_.norm_bias = norm_->by_bias();
    } else {
      d_.target = d_z_[last_].neg();
    }
  }

  const FastWeights& in_;
  const TensorSpec& spec_;
  const SavedActivations& c_;
  const FastWeightsResult& d_end_;
  const size_t last_;
  const int64_t updates_;  // number of chunks whose updated state is used: C, or C - 1 if last_state is false
  FastWeights d_;
  Tensors W_, b_, S_;
  Tensors d_u_, d_g_, d_W_, d_b_, d_S_;  // gradients; complete for a chunk after through_chunk(chunk)
  // Products u M for every chunk, where u is the input of the layer and M is the gradient with respect to the weights
  // (by_W_) or to the momentum (by_S_) after the chunk.
  Tensors by_W_, by_S_;
  Tensors d_z_, slope_, bend_, stepped_, momentum_stepped_;
  std::optional<InnerNormBackward> norm_;
};

}  // namespace

FastWeights backward(const FastWeights& in, const TensorSpec& spec, const SavedActivations& activations,
                     const FastWeightsResult& d) {
  if (activations.overlap.defined()) return run_backward(*kernels_for(in, spec), in, spec, activations, d);
  const RoundedProducts rounded(spec.rounded);
  return Backward(in, spec, activations, d).run(d.out);
}

}  // namespace lazy::fast_weights
