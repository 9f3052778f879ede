#include "model/mxfp4.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>

#include "core/error.h"

namespace lazy {
namespace {

constexpr std::string_view kBlocks = "_blocks", kScales = "_scales";

class WithoutMxfp4 : public WeightsFile {
 public:
  explicit WithoutMxfp4(std::unique_ptr<WeightsFile> file) : file_(std::move(file)) {
    const std::set<std::string> stored(file_->names().begin(), file_->names().end());
    for (const std::string& name : stored) {
      if (name.ends_with(kBlocks) && stored.count(base(name) + std::string(kScales))) packed_.insert(base(name));
    }
    for (const std::string& name : stored) {
      const bool half = name.ends_with(kBlocks) || name.ends_with(kScales);
      if (!half || !packed_.count(base(name))) names_.push_back(name);
    }
    names_.insert(names_.end(), packed_.begin(), packed_.end());
    std::sort(names_.begin(), names_.end());
  }

  const std::vector<std::string>& names() const override { return names_; }
  std::string where(const std::string& name) const override {
    return file_->where(packed_.count(name) ? name + std::string(kBlocks) : name);
  }

  WeightInfo info(const std::string& name) const override {
    if (!packed_.count(name)) return file_->info(name);
    const WeightInfo blocks = file_->info(name + std::string(kBlocks)),
                     scales = file_->info(name + std::string(kScales));
    const std::vector<int64_t>& b = blocks.shape;
    std::vector<int64_t> expected = b;
    if (!expected.empty()) expected.pop_back();
    if (b.size() != 4 || b[3] != 16 || scales.shape != expected || blocks.dtype != "U8" || scales.dtype != "U8") {
      fail("mxfp4",
           "{}: {}: expected blocks (experts, rows, groups, 16) and scales (experts, rows, groups), both of type U8",
           where(name), name);
    }
    return {"F32", {b[0], b[2] * 32, b[1]}};
  }

  void forget(const std::string& name) const override {
    if (!packed_.count(name)) return file_->forget(name);
    for (const std::string_view half : {kBlocks, kScales}) file_->forget(name + std::string(half));
  }

  at::Tensor tensor(const std::string& name) const override {
    if (!packed_.count(name)) return file_->tensor(name);
    info(name);
    return from_mxfp4(file_->tensor(name + std::string(kBlocks)), file_->tensor(name + std::string(kScales)));
  }

 private:
  static std::string base(const std::string& name) { return name.substr(0, name.size() - kBlocks.size()); }

  std::unique_ptr<WeightsFile> file_;
  std::set<std::string> packed_;
  std::vector<std::string> names_;
};

// Dequantizes the weight matrix of one expert.
at::Tensor matrix(const at::Tensor& blocks, const at::Tensor& scales) {
  static const at::Tensor values =
      at::tensor({0.f, .5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f, -0.f, -.5f, -1.f, -1.5f, -2.f, -3.f, -4.f, -6.f});
  const at::Tensor halves = at::stack({blocks.bitwise_and(15), blocks.__rshift__(4)}, -1).to(at::kInt);
  const at::Tensor numbers = values.index_select(0, halves.flatten()).view({blocks.size(0), blocks.size(1), 32});
  const at::Tensor exponents = scales.to(at::kFloat).sub(127).exp2().unsqueeze(2);
  return (numbers * exponents).flatten(1).t();
}

}  // namespace

at::Tensor from_mxfp4(const at::Tensor& blocks, const at::Tensor& scales) {
  if (blocks.dim() == 3) return matrix(blocks, scales);
  std::vector<at::Tensor> out;
  for (int64_t e = 0; e < blocks.size(0); ++e) out.push_back(from_mxfp4(blocks[e], scales[e]));
  return at::stack(out);
}

std::unique_ptr<WeightsFile> without_mxfp4(std::unique_ptr<WeightsFile> file) {
  return std::make_unique<WithoutMxfp4>(std::move(file));
}

}  // namespace lazy
