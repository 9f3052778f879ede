#include "model/mixers/packed_layouts.h"

#include <bit>

#include "model/blocks/host_tensor.h"

namespace lazy {
namespace {

// Returns the index of each document's first token, followed by the total number of tokens.
std::vector<int64_t> begins_of(const at::Tensor& cu_seqlens) {
  const at::Tensor host = cu_seqlens.to(at::kCPU, at::kLong).contiguous();
  return {host.const_data_ptr<int64_t>(), host.const_data_ptr<int64_t>() + host.numel()};
}

PackedLayouts& layouts_of(const PackedSequences& packed) {
  if (!packed.layouts) packed.layouts = std::make_shared<PackedLayouts>();
  return *packed.layouts;
}

}  // namespace

DocumentBatches document_batches(const at::Tensor& cu_seqlens, int64_t chunk, at::Device device) {
  const std::vector<int64_t> begins = begins_of(cu_seqlens);
  // Documents grouped by their number of chunks, rounded up to a power of two.
  std::map<uint64_t, std::vector<size_t>> alike;
  for (size_t n = 0; n + 1 < begins.size(); ++n) {
    const int64_t length = begins[n + 1] - begins[n];
    if (length > 0) alike[std::bit_ceil(static_cast<uint64_t>((length + chunk - 1) / chunk))].push_back(n);
  }
  DocumentBatches out;
  std::vector<int64_t> where(static_cast<size_t>(begins.back()));
  int64_t place = 0;
  for (const auto& [size, documents] : alike) {
    int64_t longest = 0;
    for (const size_t n : documents)
      longest = std::max(longest, (begins[n + 1] - begins[n] + chunk - 1) / chunk * chunk);
    std::vector<int64_t> tokens, real;
    for (const size_t n : documents) {
      for (int64_t t = 0; t < longest; ++t, ++place) {
        const bool is_real = begins[n] + t < begins[n + 1];
        tokens.push_back(is_real ? begins[n] + t : begins[n]);
        real.push_back(is_real);
        if (is_real) where[static_cast<size_t>(begins[n] + t)] = place;
      }
    }
    const auto count = static_cast<int64_t>(documents.size());
    out.batches.push_back({on_device(tokens, device).view({count, longest}),
                           on_device(real, device).view({count, longest}).to(at::kBool)});
  }
  out.where = on_device(where, device);
  return out;
}

at::Tensor batch_document_tokens(const at::Tensor& x, const DocumentBatch& batch) {
  return x.squeeze(0).index_select(0, batch.tokens.flatten()).unflatten(0, batch.tokens.sizes());
}

at::Tensor unbatch_documents(const std::vector<at::Tensor>& answers, const DocumentBatches& documents) {
  std::vector<at::Tensor> rows;
  for (const at::Tensor& answer : answers) rows.push_back(answer.flatten(0, 1));
  return at::cat(rows).index_select(0, documents.where).unsqueeze(0);
}

const DocumentBatches& batches_of(const PackedSequences& packed, int64_t chunk, at::Device device) {
  auto& known = layouts_of(packed).batches;
  if (!known.count(chunk)) known[chunk] = document_batches(packed.cu_seqlens_q, chunk, device);
  return known[chunk];
}

const PrefixedDocuments& with_prefix(const PackedSequences& packed, int64_t count, at::Device device) {
  auto& known = layouts_of(packed).prefixed;
  if (const auto found = known.find(count); found != known.end()) return found->second;
  const std::vector<int64_t> begins = begins_of(packed.cu_seqlens_q);
  std::vector<int64_t> from, rows, positions;
  std::vector<int32_t> cu_seqlens{0};
  for (size_t n = 0; n + 1 < begins.size(); ++n) {
    for (int64_t p = 0; p < count; ++p) from.push_back(p);
    for (int64_t t = begins[n]; t < begins[n + 1]; ++t) {
      rows.push_back(static_cast<int64_t>(from.size()));
      from.push_back(count + t);
    }
    for (int64_t p = 0; p < count + begins[n + 1] - begins[n]; ++p) positions.push_back(p);
    cu_seqlens.push_back(static_cast<int32_t>(from.size()));
  }
  PrefixedDocuments& out = known[count];
  out.from = on_device(from, device), out.rows = on_device(rows, device);
  out.sequences.positions = on_device(positions, device);
  out.sequences.cu_seqlens_q = out.sequences.cu_seqlens_k = on_host(cu_seqlens, at::kInt, device);
  out.sequences.longest = packed.longest + count;
  return out;
}

}  // namespace lazy
