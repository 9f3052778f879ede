#include "model/mixers/chunk_pieces.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace lazy {

std::vector<ChunkPiece> chunk_pieces(int64_t length, int64_t chunk, int64_t seen, const at::Tensor& cu_seqlens) {
  std::vector<int64_t> ends = {0, length};
  if (cu_seqlens.defined()) {
    const at::Tensor host = cu_seqlens.to(at::kCPU, at::kLong).contiguous();
    ends.assign(host.const_data_ptr<int64_t>(), host.const_data_ptr<int64_t>() + host.numel());
    TORCH_CHECK(seen == 0, "packed documents start without a state");
    TORCH_CHECK(!ends.empty() && ends.front() == 0 && ends.back() == length && std::is_sorted(ends.begin(), ends.end()),
                "cu_seqlens expected to ascend from 0 to ", length, ", received ", host);
  }
  std::vector<ChunkPiece> pieces;
  for (size_t document = 0; document + 1 < ends.size(); ++document) {
    int64_t place = seen;
    for (int64_t begin = ends[document]; begin < ends[document + 1]; place = 0) {
      const int64_t size = std::min(chunk - place, ends[document + 1] - begin);
      pieces.push_back({begin, size, place, place + size == chunk, begin == ends[document]});
      begin += size;
    }
  }
  return pieces;
}

std::vector<ChunkPiece> joined(const std::vector<ChunkPiece>& pieces, int64_t tokens) {
  const auto whole = [](const ChunkPiece& p) { return p.place == 0 && p.ends_chunk; };
  std::vector<ChunkPiece> out;
  for (const ChunkPiece& piece : pieces) {
    if (!out.empty() && whole(out.back()) && whole(piece) && !piece.starts_document &&
        out.back().length + piece.length <= tokens) {
      out.back().length += piece.length;
      ++out.back().chunks;
    } else {
      out.push_back(piece);
    }
  }
  return out;
}

}  // namespace lazy
