#include "sinks/tensor_index.h"

#include <ATen/ATen.h>

#include <fmt/ranges.h>
#include <charconv>

#include <numeric>

#include "core/error.h"
#include "core/text.h"

namespace lazy::sinks {
namespace {

int64_t index_number(std::string_view text, const std::string& whole, const std::string& where) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    fail("sinks", "{}: expected entries such as :, 3, 2:5 or 0+3, found '{}'", where, whole);
  }
  return value;
}

// Returns an open mesh like numpy.ix_: for each dimension d, a tensor with the indices of that dimension, whose shape
// is 1 in all dimensions except d.
c10::List<std::optional<at::Tensor>> mesh(const std::vector<std::vector<int64_t>>& entries, at::Device device) {
  c10::List<std::optional<at::Tensor>> out;
  for (size_t d = 0; d < entries.size(); ++d) {
    std::vector<int64_t> shape(entries.size(), 1);
    shape[d] = static_cast<int64_t>(entries[d].size());
    out.push_back(at::tensor(entries[d], at::kLong).view(shape).to(device));
  }
  return out;
}

}  // namespace

TensorIndex TensorIndex::parse(const std::string& text, const std::string& where) {
  TensorIndex index;
  for (const std::string& item : split(text, ',')) {
    const std::string_view part = strip(item);
    IndexRange range;
    if (const size_t colon = part.find(':'); colon != std::string_view::npos) {
      if (colon > 0) range.begin = index_number(part.substr(0, colon), item, where);
      if (colon + 1 < part.size()) range.end = index_number(part.substr(colon + 1), item, where);
    } else {
      range.single = true;
      for (const std::string& one : split(part, '+')) range.entries.push_back(index_number(one, item, where));
    }
    index.ranges_.push_back(range);
  }
  return index;
}

std::vector<std::vector<int64_t>> TensorIndex::entries(const at::Tensor& tensor, int64_t skip,
                                                       const std::string& where) const {
  const auto named = static_cast<int64_t>(ranges_.size());
  if (skip + named > tensor.dim()) {
    fail("sinks", "{}: expected at most {} entries in the brackets, found {}", where, tensor.dim() - skip, named);
  }
  std::vector<std::vector<int64_t>> out;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    const int64_t size = tensor.size(d);
    const IndexRange range = d >= skip && d < skip + named ? ranges_[static_cast<size_t>(d - skip)] : IndexRange{};
    std::vector<int64_t> places = range.entries;
    if (!range.single) {
      const auto edge = [&](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size); };
      const int64_t begin = edge(range.begin), end = range.end == INT64_MAX ? size : edge(range.end);
      places.resize(static_cast<size_t>(std::max<int64_t>(0, end - begin)));
      std::iota(places.begin(), places.end(), begin);
    }
    for (int64_t& at : places) {
      const int64_t asked = at;
      if (at < 0) at += size;
      if (at < 0 || at >= size)
        fail("sinks", "{}: expected entries below {} in dimension {}, found {}", where, size, d, asked);
    }
    if (places.empty())
      fail("sinks", "{}: the index selects no entry of dimension {}, whose size is {}", where, d, size);
    out.push_back(std::move(places));
  }
  return out;
}

at::Tensor TensorIndex::of(const at::Tensor& tensor, int64_t skip, const std::string& where) const {
  if (ranges_.empty()) return tensor;
  return at::index(tensor, mesh(entries(tensor, skip, where), tensor.device()));
}

void TensorIndex::put(const at::Tensor& tensor, const at::Tensor& values, int64_t skip,
                      const std::string& where) const {
  const auto places = entries(tensor, skip, where);
  std::vector<int64_t> shape;
  for (const auto& dimension : places) shape.push_back(static_cast<int64_t>(dimension.size()));
  at::Tensor fitted;
  try {
    fitted = values.to(tensor.options()).expand(shape);
  } catch (const c10::Error&) {
    fail("sinks", "{}: expected values of shape [{}], found [{}]", where, fmt::join(shape, ", "),
         fmt::join(values.sizes(), ", "));
  }
  at::Tensor target = tensor;
  target.index_put_(mesh(places, tensor.device()), fitted);
}

NamedPart parse_part(const std::string& text, const std::string& where) {
  // An index is at the end of the text. A bracket that is followed by other characters, as in layers.[2-5].mlp, belongs
  // to a pattern.
  const size_t open = text.rfind('[');
  if (text.empty() || text.back() != ']' || open == std::string::npos) return {text, {}};
  return {text.substr(0, open), TensorIndex::parse(text.substr(open + 1, text.size() - open - 2), where)};
}

}  // namespace lazy::sinks
