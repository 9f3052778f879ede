// Selects a part of a tensor with a Python-style index: "wpe.weight[0]", "q[5:,:,0+3]". Each dimension is indexed by
// all entries (:), a range (2:5, 2:, :5), one entry (3) or several entries (0+3+7). Negative entries count from the
// end. Trailing dimensions may be omitted.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "model/torch_forward.h"

namespace lazy::sinks {

class TensorIndex {
 public:
  TensorIndex() = default;
  // `text` is the part between the brackets. `where` identifies the index in error messages.
  static TensorIndex parse(const std::string& text, const std::string& where);

  // Returns the indexed part. A dimension that is indexed by a single entry is kept with size 1. The first `skip`
  // dimensions are not indexed.
  at::Tensor of(const at::Tensor& tensor, int64_t skip, const std::string& where) const;
  // Writes `values`, broadcast to the shape of the indexed part, to this part of `tensor` in place.
  void put(const at::Tensor& tensor, const at::Tensor& values, int64_t skip, const std::string& where) const;

 private:
  struct IndexRange {
    bool single = false;  // true: use `entries`; false: use the range from `begin` to `end`
    std::vector<int64_t> entries;
    int64_t begin = 0, end = INT64_MAX;
  };
  std::vector<std::vector<int64_t>> entries(const at::Tensor& tensor, int64_t skip, const std::string& where) const;
  std::vector<IndexRange> ranges_;
};

// A parsed text "name[index]". Without brackets, the index covers the whole tensor.
struct NamedPart {
  std::string name;
  TensorIndex index;
};
NamedPart parse_part(const std::string& text, const std::string& where);

}  // namespace lazy::sinks
