// One attention problem with its inputs, and three ways to compute it: the float64 reference, a plain fp32 computation
// that rounds only inputs and outputs (the second reference, which defines the tolerance), and the kernels under test.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "attention/reference/normalizers.h"
#include "tensor.h"

namespace lazy::kernels::test {

struct Shape {
  int64_t batch = 1, q_length = 1, k_length = 1, heads = 2, kv_heads = 2, head_dim = 16, value_dim = 16;
  bool causal = true;
  int64_t window = -1, bias_window = 0;
  bool alibi = false;
  Normalizer normalizer = Normalizer::softmax;
  Offset offset = Offset::per_visible;
  double tau = -1;
  double sink = 0;         // mean of the random sinks
  double score_scale = 1;  // factor of the random values of q: larger values give larger scores
  double softcap = 0;
  DType dtype = DType::f32;
  Layout layout = Layout::tokens_first;
  std::vector<int32_t> cu_q, cu_k;  // cumulative lengths; empty if sequences are not packed
  // Only for normalizers with tau. If true, the second reference imitates the rounding in backward_sums.cuh. It
  // computes the sums for the gradient of a row of scores from out and from alive_sum (the sum of the rows of V with
  // nonzero weight, see lazy/attention.h). Both tensors, and the weights in out, are rounded to the dtype. The gradient
  // of the distance bias is summed from score gradients that are rounded to the dtype.
  bool rounded_sums = false;
  std::string text() const;
};

struct Inputs {
  Tensor q, k, v, d_out;
  std::vector<double> distance_bias, tau, sink, alibi_slopes;  // all values can be represented exactly in fp32
};

struct Results {
  Tensor out, d_q, d_k, d_v;
  std::vector<double> lse, stats, d_distance_bias, d_tau, d_sink, d_alibi_slopes;
  std::vector<double> score_stats = {};
};

Problem make_problem(const Shape& shape);
// Returns the score at which a weight of the row becomes zero, in float64; nullopt if no score gives a zero weight, as
// with softmax.
std::optional<double> vanishing_score(Normalizer normalizer, const std::vector<double>& scores,
                                      const reference::RowParameters& parameters);
// Returns random inputs. Query rows are drawn again until no score is within `liveness_band` of the score at which a
// weight becomes zero. Every correct fp32 computation then has the same zero weights as the float64 reference.
Inputs make_inputs(const Shape& shape, uint64_t seed);
// Returns how near a score may be to the score at which a weight becomes zero: a few rounding errors of a score of size
// `largest_score` and of the log-sum-exp.
double liveness_band(double largest_score);

Results run_reference(const Shape& shape, const Inputs& inputs);
// Runs the plain computation with `orders` random orders of the sums. The seeds start at `seed`.
std::vector<Results> run_plain(const Shape& shape, const Inputs& inputs, uint64_t seed, int orders, bool gradients);
Results run_fast(const Shape& shape, const Inputs& inputs, int threads = 0);  // runs on the device of device.h

// The tolerance of the tests. The error of a kernel, relative to the float64 reference, may be at most twice the error
// of the plain computation, plus one rounding. fp32 sums have no specified order, so a single result of the plain
// computation may be exact by chance. Therefore the plain computation runs with several orders, and its largest error
// is used. Errors are divided by the size of the values of their case and are pooled over all cases with the same score
// scale. The numbers of nonzero weights must equal the numbers of the reference.
class TwoReferences {
 public:
  // tensor_cores: tensor cores truncate the sum of a score once per 16 products, whereas the plain computation rounds.
  // An fp32 result may therefore have one additional rounding error per truncation.
  explicit TwoReferences(bool tensor_cores = false) : tensor_cores_(tensor_cores) {}
  void add(const Shape& shape, const Inputs& inputs) { add(shape, inputs, run_fast(shape, inputs)); }
  // Empty members of `found` are results that the kernel did not compute; they are not compared.
  void add(const Shape& shape, const Inputs& inputs, const Results& found);
  void check() const;

 private:
  struct Pool {
    double rounding = 0, expected_largest = 0, expected_mean_square = 0, found_largest = 0, found_mean_square = 0;
    int64_t cases = 0;
    std::string worst;
  };
  std::map<std::pair<std::string, double>, Pool> pools_;
  uint64_t cases_ = 0;
  bool tensor_cores_;
};

}  // namespace lazy::kernels::test
