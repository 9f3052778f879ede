// One attention problem with its inputs, and three ways to compute it: the float64 reference, a plain fp32 computation
// that rounds only inputs and outputs (the second reference of the tolerance), and the kernels under test.
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
  double score_scale = 1;  // multiplies q
  double softcap = 0;
  DType dtype = DType::f32;
  Layout layout = Layout::tokens_first;
  std::vector<int32_t> cu_q, cu_k;  // packed when not empty
  // Elastic: the second reference takes a row's sums of the gradient from out and alive_sum (lazy/attention.h), both
  // and the weights in out rounded to the dtype, and sums the gradient of the distance bias from rounded ds.
  bool rounded_sums = false;
  std::string text() const;
};

struct Inputs {
  Tensor q, k, v, d_out;
  std::vector<double> distance_bias, tau, sink, alibi_slopes;  // exact in fp32
};

struct Results {
  Tensor out, d_q, d_k, d_v;
  std::vector<double> lse, stats, d_distance_bias, d_tau, d_sink, d_alibi_slopes;
  std::vector<double> score_stats = {};
};

Problem make_problem(const Shape& shape);
// The score at which a weight of the row becomes zero, in float64; none for normalizers whose weights never do.
std::optional<double> vanishing_score(Normalizer normalizer, const std::vector<double>& scores,
                                      const reference::RowParameters& parameters);
// Random inputs. Query rows are drawn again until no score lies within `liveness_band` of the threshold at which a
// weight becomes zero, so that every correct fp32 computation has float64's mask.
Inputs make_inputs(const Shape& shape, uint64_t seed);
// Half width, in units of the score: a few roundings of a score of this size and of the log-sum-exp.
double liveness_band(double largest_score);

Results run_reference(const Shape& shape, const Inputs& inputs);
// In several orders of the sums, of seeds from `seed` on.
std::vector<Results> run_plain(const Shape& shape, const Inputs& inputs, uint64_t seed, int orders, bool gradients);
Results run_fast(const Shape& shape, const Inputs& inputs, int threads = 0);  // where device.h says

// The tolerance: kernel results may be at most twice as far from the reference as the plain computation is, plus one
// rounding. fp32 leaves the order of sums open and a single number may be exact by luck: the plain computation runs in
// a few orders and the farthest counts, and errors, relative to the case's values, are pooled over the cases of equal
// score scale. Alive counts must be the reference's.
class TwoReferences {
 public:
  // tensor_cores: these cut the last digits of a score's sum, once in 16 products, where the plain computation rounds;
  // an fp32 result may have a rounding more for each.
  explicit TwoReferences(bool tensor_cores = false) : tensor_cores_(tensor_cores) {}
  void add(const Shape& shape, const Inputs& inputs) { add(shape, inputs, run_fast(shape, inputs)); }
  void add(const Shape& shape, const Inputs& inputs, const Results& found);  // what it leaves empty is not compared
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
