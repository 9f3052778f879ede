#include "model/mixers/chunked_scan.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "model/blocks/activation_checkpoint.h"

namespace lazy {

std::vector<ChunkSpan> split_into_chunks(int64_t length, int64_t chunk, int64_t seen, const at::Tensor& cu_seqlens) {
  std::vector<int64_t> ends = {0, length};
  if (cu_seqlens.defined()) {
    const at::Tensor host = cu_seqlens.to(at::kCPU, at::kLong).contiguous();
    ends.assign(host.const_data_ptr<int64_t>(), host.const_data_ptr<int64_t>() + host.numel());
    TORCH_CHECK(seen == 0, "packed documents cannot continue an earlier state");
    TORCH_CHECK(!ends.empty() && ends.front() == 0 && ends.back() == length && std::is_sorted(ends.begin(), ends.end()),
                "expected cu_seqlens to ascend from 0 to ", length, ", received ", host);
  }
  std::vector<ChunkSpan> pieces;
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

std::vector<ChunkSpan> merge_whole_chunks(const std::vector<ChunkSpan>& pieces, int64_t tokens) {
  const auto whole = [](const ChunkSpan& p) { return p.offset == 0 && p.ends_chunk; };
  std::vector<ChunkSpan> out;
  for (const ChunkSpan& piece : pieces) {
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

namespace {

TensorList take(TensorList::const_iterator& from, size_t count) {
  const auto begin = from;
  from += static_cast<std::ptrdiff_t>(count);
  return {begin, from};
}

// Splits the tokens (batch, length, ...) into consecutive spans. The backward pass of one split operation concatenates
// the gradients of all spans. This is faster than separate slices, whose gradients would each be padded to the full
// length and added.
std::vector<TensorList> split_tokens(const TensorList& tokens, const std::vector<int64_t>& lengths) {
  std::vector<TensorList> out(lengths.size());
  for (const at::Tensor& x : tokens) {
    const TensorList parts = lengths.size() == 1 ? TensorList{x} : x.split_with_sizes(lengths, 1);
    for (size_t n = 0; n < parts.size(); ++n) out[n].push_back(parts[n]);
  }
  return out;
}

// Concatenates the outputs of consecutive spans along the token dimension `tokens`.
TensorList join_outputs(const std::vector<TensorList>& spans, int64_t tokens) {
  if (spans.size() == 1) return spans[0];
  TensorList out;
  for (size_t n = 0; n < spans[0].size(); ++n) {
    TensorList parts;
    for (const TensorList& span : spans) parts.push_back(span[n]);
    out.push_back(at::cat(parts, tokens));
  }
  return out;
}

}  // namespace

std::pair<TensorList, TensorList> scan_chunks(std::vector<ChunkSpan> pieces, const TensorList& tokens,
                                              const TensorList& shared, const TensorList& state, bool last_state,
                                              const ChunkFunction& form, int64_t tokens_per_checkpoint) {
  if (!pieces.empty()) pieces.back().needs_state = last_state;
  std::vector<std::vector<ChunkSpan>> groups;  // each group contains the spans between two saved states
  std::vector<int64_t> lengths;
  for (const ChunkSpan& piece : pieces) {
    if (lengths.empty() || lengths.back() >= tokens_per_checkpoint) groups.emplace_back(), lengths.push_back(0);
    groups.back().push_back(piece);
    lengths.back() += piece.length;
  }
  std::vector<TensorList> parts = split_tokens(tokens, lengths);
  std::vector<TensorList> answers;
  TensorList current = state;
  for (size_t n = 0; n < groups.size(); ++n) {
    const std::vector<ChunkSpan>& group = groups[n];
    TensorList inputs = std::move(parts[n]);
    inputs.insert(inputs.end(), shared.begin(), shared.end());
    inputs.insert(inputs.end(), current.begin(), current.end());
    const auto run = [group, form,
                      sizes = std::array{tokens.size(), shared.size(), state.size()}](const TensorList& in) {
      auto from = in.begin();
      const TensorList x = take(from, sizes[0]), constant = take(from, sizes[1]);
      TensorList now = take(from, sizes[2]);
      std::vector<int64_t> lengths;
      for (const ChunkSpan& piece : group) lengths.push_back(piece.length);
      std::vector<TensorList> parts = split_tokens(x, lengths);
      std::vector<TensorList> out;
      for (size_t n = 0; n < group.size(); ++n) {
        for (at::Tensor& t : parts[n]) t = t.transpose(1, 2);
        out.push_back(form(group[n], parts[n], constant, now));
      }
      TensorList result = join_outputs(out, 2);
      for (at::Tensor& t : result) t = t.transpose(1, 2);
      if (group.back().needs_state) result.insert(result.end(), now.begin(), now.end());
      return result;
    };
    const TensorList result = keep_or_checkpoint(inputs, run);
    const auto after = result.end() - static_cast<std::ptrdiff_t>(group.back().needs_state ? state.size() : 0);
    answers.emplace_back(result.begin(), after);
    current.assign(after, result.end());
  }
  return {join_outputs(answers, 1), current};
}

at::Tensor chunkwise_read(const ChunkwiseUpdate& form, const at::Tensor& x, const at::Tensor& W, const at::Tensor& S,
                          const at::Tensor& u, const at::Tensor& g, const BiasTerms& bias) {
  const auto through = [&](const at::Tensor& weights, const at::Tensor& row) {
    const at::Tensor y = at::matmul(x, weights);
    return row.defined() ? y + row : y;
  };
  at::Tensor y = through(W, bias.b);
  if (form.keep.defined()) y = y * form.keep;
  if (form.carry.defined()) y = y + form.carry * through(S, bias.b_S);
  at::Tensor overlap = at::matmul(x, u.transpose(-1, -2));
  // The bias b acts as a weight whose input is always 1, so it adds 1 * 1 to each inner product.
  if (bias.b.defined()) overlap = overlap + 1;
  return y - at::matmul(form.steps * overlap, g);
}

}  // namespace lazy
