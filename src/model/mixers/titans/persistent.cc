#include "model/mixers/titans/persistent.h"

#include <ATen/ATen.h>

#include "model/language_model.h"
#include "model/mixers/parameter_table.h"

namespace lazy {

at::Tensor persistent_tokens(const ParameterTable& table, const ModelConfig& config) {
  const at::Tensor listed = table["persistent"];
  if (listed.defined()) return listed;
  return at::empty({0, config.hidden_size}, table.all().front().second.options().requires_grad(false));
}

at::Tensor WithPersistent::text(const at::Tensor& y) const {
  if (rows.defined()) return y.index_select(1, rows);
  return added > 0 ? y.narrow(1, added, y.size(1) - added) : y;
}

WithPersistent with_persistent(const at::Tensor& x, const at::Tensor& persistent, const ForwardOptions& options) {
  const int64_t count = persistent.size(0), length = x.size(1);
  const at::Tensor before = persistent.to(x.scalar_type()).unsqueeze(0).expand({x.size(0), -1, -1});
  const auto whole = x.options().dtype(at::kLong).requires_grad(false);
  if (!options.packed) {
    const int64_t earlier = options.cache ? options.cache->length : 0;
    if (earlier > 0) return {.x = x, .positions = at::arange(count + earlier, count + earlier + length, whole)};
    return {.x = at::cat({before, x}, 1), .positions = at::arange(count + length, whole), .added = count};
  }
  const at::Tensor cu = options.packed->cu_seqlens_q.to(x.device(), at::kLong);
  const int64_t documents = cu.size(0) - 1;
  WithPersistent out;
  out.cu_seqlens = cu + count * at::arange(documents + 1, whole);
  const at::Tensor token = at::arange(length, whole);
  const at::Tensor document = at::searchsorted(cu, token, /*out_int32=*/false, /*right=*/true) - 1;
  out.rows = token + count * (document + 1);
  // Where each row of the result comes from, in [persistent | x].
  const at::Tensor starts =
      (out.cu_seqlens.narrow(0, 0, documents).unsqueeze(1) + at::arange(count, whole)).reshape({-1});
  at::Tensor from = at::empty({length + count * documents}, whole);
  from.index_copy_(0, starts, at::arange(count, whole).repeat({documents}));
  from.index_copy_(0, out.rows, token + count);
  out.positions = at::empty_like(from);
  out.positions.index_copy_(0, starts, at::arange(count, whole).repeat({documents}));
  out.positions.index_copy_(0, out.rows, token - cu.index_select(0, document) + count);
  out.x = at::cat({before, x}, 1).index_select(1, from);
  return out;
}

}  // namespace lazy
