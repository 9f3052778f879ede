// A part of a tensor, written as in Python: "wpe.weight[0]", "q[5:,:,0+3]". Entries of a dimension are all (:), a range
// (2:5, 2:, :5), one (3) or several (0+3+7); negative ones count from the end. Dimensions that are not named are whole.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace lazy::sinks {

class TensorIndex {
 public:
  TensorIndex() = default;
  // What stands between the brackets. Error naming `where`.
  static TensorIndex parse(const std::string& text, const std::string& where);

  // The part; every dimension stays, also one of a single entry. `skip`: dimensions before the first that is named,
  // whole.
  at::Tensor of(const at::Tensor& tensor, int64_t skip, const std::string& where) const;
  // Writes `values`, which may be smaller by broadcasting, into the part, in place.
  void put(const at::Tensor& tensor, const at::Tensor& values, int64_t skip, const std::string& where) const;

 private:
  struct Range {
    bool single = false;  // `entries`, else from `begin` to `end`
    std::vector<int64_t> entries;
    int64_t begin = 0, end = INT64_MAX;
  };
  std::vector<std::vector<int64_t>> entries(const at::Tensor& tensor, int64_t skip, const std::string& where) const;
  std::vector<Range> ranges_;
};

// "name[index]" cut in two; without brackets the index is the whole tensor.
struct NamedPart {
  std::string name;
  TensorIndex index;
};
NamedPart parse_part(const std::string& text, const std::string& where);

}  // namespace lazy::sinks
