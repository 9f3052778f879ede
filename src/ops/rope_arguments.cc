#include "ops/rope_arguments.h"

#include <cmath>

#include "ops/fused.h"

namespace lazy::ops {

void check_rope(const at::Tensor& x, const OptionalTensor& positions, const RopeArguments& a) {
  row_type("rope", x);
  LAZY_CHECK("rope", x.dim() == 4 || x.dim() == 3,
             "x of shape (batch, length, heads, head_dim) or (tokens, heads, head_dim), received ", x.sym_sizes());
  LAZY_CHECK("rope", a.rotary_dim >= 2 && a.rotary_dim % 2 == 0 && x.sym_size(-1) >= a.rotary_dim,
             "an even rotary_dim from 2 to head_dim, ", x.sym_size(-1), ", received ", a.rotary_dim);
  LAZY_CHECK("rope", a.base > 1 && std::isfinite(a.base), "base above 1, received ", a.base);
  LAZY_CHECK("rope", a.offset >= 0, "offset of at least 0, received ", a.offset);
  const RopeScaling& s = a.scaling;
  const bool llama3 = s.type == "llama3", yarn = s.type == "yarn";
  LAZY_CHECK("rope", llama3 || yarn || s.type == "none" || s.type == "linear",
             "scaling to be \"none\", \"linear\", \"llama3\" or \"yarn\", received \"", s.type, "\"");
  LAZY_CHECK("rope", s.factor > 0 && std::isfinite(s.factor), "factor above 0, received ", s.factor);
  LAZY_CHECK("rope", s.type != "none" || s.factor == 1, "factor only with a scaling, received ", s.factor,
             " with \"none\"");
  LAZY_CHECK("rope", !(llama3 || yarn) || s.original_length > 0, "original_length above 0 for scaling \"", s.type,
             "\", received ", s.original_length);
  LAZY_CHECK("rope", !llama3 || s.high_frequency > s.low_frequency, "high_frequency above low_frequency, received ",
             s.high_frequency, " and ", s.low_frequency);
  LAZY_CHECK("rope", !yarn || (s.beta_slow > 0 && s.beta_fast >= s.beta_slow), "beta_fast >= beta_slow > 0, received ",
             s.beta_fast, " and ", s.beta_slow);
  LAZY_CHECK("rope", s.attention_factor >= 0, "attention_factor of at least 0, received ", s.attention_factor);
  if (!positions || !positions->defined()) return;
  LAZY_CHECK("rope", positions->scalar_type() == at::kInt || positions->scalar_type() == at::kLong,
             "positions of type int32 or int64, received ", positions->scalar_type());
  LAZY_CHECK("rope", positions->device() == x.device(), "positions on ", x.device(), " like x, received ",
             positions->device());
  const bool per_token = positions->dim() == 1 && positions->sym_size(0) == x.sym_size(-3);
  const bool per_batch = x.dim() == 4 && positions->dim() == 2 && positions->sym_sizes() == x.sym_sizes().slice(0, 2);
  LAZY_CHECK("rope", per_token || per_batch, "positions of shape (length) or (batch, length), received ",
             positions->sym_sizes(), " for x of ", x.sym_sizes());
  LAZY_CHECK("rope", a.offset == 0, "no offset beside positions, received ", a.offset);
}

RopeKey rope_key(const RopeArguments& a) {
  const RopeScaling& s = a.scaling;
  return {a.base,           a.rotary_dim, s.type,      s.factor,   s.original_length, s.low_frequency,
          s.high_frequency, s.beta_fast,  s.beta_slow, s.truncate, s.attention_factor};
}

void check_last_rope_position(int64_t last) {
  LAZY_CHECK("rope", last < kMostRopePositions, "positions below ", kMostRopePositions, ", received ", last);
}

}  // namespace lazy::ops
