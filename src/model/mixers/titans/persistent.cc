#include "model/mixers/titans/persistent.h"

#include <ATen/ATen.h>

#include "model/language_model.h"
#include "model/mixers/packed_layouts.h"
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
  const PrefixedDocuments& all = prefixed_by(*options.packed, count, x.device());
  return {.x = at::cat({before, x}, 1).index_select(1, all.from),
          .positions = all.sequences.positions,
          .packed = &all.sequences,
          .rows = all.rows};
}

}  // namespace lazy
