#include "model/mixers/piecewise.h"

#include <ATen/ATen.h>

#include "model/blocks/recompute.h"

namespace lazy {
namespace {

TensorList take(TensorList::const_iterator& from, size_t count) {
  const auto begin = from;
  from += static_cast<std::ptrdiff_t>(count);
  return {begin, from};
}

}  // namespace

std::pair<at::Tensor, TensorList> piecewise(std::vector<ChunkPiece> pieces, const TensorList& tokens,
                                            const TensorList& shared, const TensorList& state, bool last_state,
                                            const PieceForm& form) {
  if (!pieces.empty()) pieces.back().leaves_state = last_state;
  std::vector<at::Tensor> answers;
  TensorList current = state;
  for (size_t next = 0; next < pieces.size();) {
    const int64_t begin = pieces[next].begin;
    std::vector<ChunkPiece> group;
    int64_t length = 0;
    while (next < pieces.size() && length < kTokensAGroup) {
      group.push_back(pieces[next++]);
      group.back().begin -= begin;
      length += group.back().length;
    }
    TensorList inputs;
    for (const at::Tensor& x : tokens) inputs.push_back(x.narrow(1, begin, length));
    inputs.insert(inputs.end(), shared.begin(), shared.end());
    inputs.insert(inputs.end(), current.begin(), current.end());
    const auto run = [group, form,
                      sizes = std::array{tokens.size(), shared.size(), state.size()}](const TensorList& in) {
      auto from = in.begin();
      const TensorList x = take(from, sizes[0]), constant = take(from, sizes[1]);
      TensorList now = take(from, sizes[2]);
      std::vector<at::Tensor> out;
      for (const ChunkPiece& piece : group) {
        TensorList part;
        for (const at::Tensor& t : x) part.push_back(t.narrow(1, piece.begin, piece.length).transpose(1, 2));
        out.push_back(form(piece, part, constant, now));
      }
      TensorList result = {(out.size() == 1 ? out[0] : at::cat(out, 2)).transpose(1, 2)};
      if (group.back().leaves_state) result.insert(result.end(), now.begin(), now.end());
      return result;
    };
    const TensorList result = recompute(inputs, run);
    answers.push_back(result[0]);
    current.assign(result.begin() + 1, result.end());
  }
  return {answers.size() == 1 ? answers[0] : at::cat(answers, 1), current};
}

}  // namespace lazy
