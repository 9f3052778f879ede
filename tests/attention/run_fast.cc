// Runs the kernels under test on the CPU or the GPU.
#include "case.h"
#include "cuda/run_cuda.h"
#include "device.h"

namespace lazy::kernels::test {

Results run_fast(const Shape& s, const Inputs& in, int threads) {
  if (on_cuda()) return run_cuda(s, in);
  Problem p = make_problem(s);
  p.threads = threads;
  Buffer q(in.q, s.dtype, s.layout), k(in.k, s.dtype, s.layout), v(in.v, s.dtype, s.layout);
  Buffer d_out(in.d_out, s.dtype, s.layout), out(in.d_out, s.dtype, s.layout);
  Buffer d_q(in.q, s.dtype, s.layout), d_k(in.k, s.dtype, s.layout), d_v(in.v, s.dtype, s.layout);
  q.fill(in.q);
  k.fill(in.k);
  v.fill(in.v);
  d_out.fill(in.d_out);
  auto narrow = [](const std::vector<double>& x) { return std::vector<float>(x.begin(), x.end()); };
  const std::vector<float> bias = narrow(in.distance_bias), tau = narrow(in.tau), sink = narrow(in.sink),
                           slopes = narrow(in.alibi_slopes);
  const float poison = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> lse(s.batch * s.heads * s.q_length, poison), stats(3 * lse.size(), poison),
      scores(2 * lse.size(), poison);
  std::vector<float> d_bias(bias.size(), poison), d_tau(tau.size(), poison), d_sink(sink.size(), poison),
      d_slopes(slopes.size(), poison);
  auto fill = [&](auto& a) {
    auto pointer = [](const std::vector<float>& x) { return x.empty() ? nullptr : x.data(); };
    a.q = q.const_view();
    a.k = k.const_view();
    a.v = v.const_view();
    a.distance_bias = pointer(bias);
    a.tau = pointer(tau);
    a.sink = pointer(sink);
    a.alibi_slopes = pointer(slopes);
  };
  Forward<float> f;
  fill(f);
  f.out = out.view();
  f.lse = lse.data();
  f.stats = stats.data();
  f.score_stats = scores.data();
  forward(p, f);
  Backward<float> b;
  fill(b);
  b.out = out.const_view();
  b.d_out = d_out.const_view();
  b.lse = lse.data();
  b.d_q = d_q.view();
  b.d_k = d_k.view();
  b.d_v = d_v.view();
  auto pointer = [](std::vector<float>& x) { return x.empty() ? nullptr : x.data(); };
  b.d_distance_bias = pointer(d_bias);
  b.d_tau = pointer(d_tau);
  b.d_sink = pointer(d_sink);
  b.d_alibi_slopes = pointer(d_slopes);
  backward(p, b);
  auto widen = [](const std::vector<float>& x) { return std::vector<double>(x.begin(), x.end()); };
  return {out.read(),    d_q.read(),   d_k.read(),    d_v.read(),      widen(lse),   widen(stats),
          widen(d_bias), widen(d_tau), widen(d_sink), widen(d_slopes), widen(scores)};
}

}  // namespace lazy::kernels::test
