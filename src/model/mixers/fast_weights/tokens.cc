#include "model/mixers/fast_weights/tokens.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <map>

namespace lazy::fast_weights {

at::Tensor to_chunks(const at::Tensor& x, int64_t chunks) {
  return x.unflatten(2, {chunks, x.size(2) / chunks}).movedim(2, 0).contiguous().flatten(1, 2);
}

at::Tensor from_chunks(const at::Tensor& x, int64_t batch) {
  return x.unflatten(1, {batch, x.size(1) / batch}).movedim(0, 2).flatten(2, 3);
}

at::Tensor for_all(const at::Tensor& of_heads, int64_t batch) { return of_heads.unsqueeze(0).expand({batch, -1, -1, -1}).flatten(0, 1); }

DocumentBatches document_batches(const at::Tensor& cu_seqlens, int64_t chunk, at::Device device) {
  const at::Tensor ends = cu_seqlens.to(at::kCPU, at::kLong).contiguous();
  const int64_t* end = ends.const_data_ptr<int64_t>();
  std::map<uint64_t, std::vector<int64_t>> alike;  // documents by their chunks' next power of two
  for (int64_t n = 0; n + 1 < ends.numel(); ++n) {
    const int64_t length = end[n + 1] - end[n];
    if (length > 0) alike[std::bit_ceil(static_cast<uint64_t>((length + chunk - 1) / chunk))].push_back(n);
  }
  DocumentBatches out;
  at::Tensor where = at::empty({end[ends.numel() - 1]}, at::kLong);
  int64_t begin = 0;
  for (const auto& [size, documents] : alike) {
    const at::Tensor starts = ends.index_select(0, at::tensor(documents)).unsqueeze(1);
    const at::Tensor lengths = ends.index_select(0, at::tensor(documents) + 1).unsqueeze(1) - starts;
    const int64_t longest = (lengths.max().item<int64_t>() + chunk - 1) / chunk * chunk;
    const at::Tensor place = at::arange(longest, at::kLong).unsqueeze(0), real = place < lengths;
    const at::Tensor tokens = at::where(real, starts + place, starts);
    where.index_put_({tokens.masked_select(real)},
                     (begin + at::arange(real.numel())).view_as(real).masked_select(real));
    begin += real.numel();
    out.batches.push_back({tokens.to(device), real.to(device)});
  }
  out.where = where.to(device);
  return out;
}

at::Tensor take_documents(const at::Tensor& x, const DocumentBatch& batch) {
  return x.squeeze(0).index_select(0, batch.tokens.flatten()).unflatten(0, batch.tokens.sizes());
}

}  // namespace lazy::fast_weights
