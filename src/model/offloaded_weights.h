// Weights that stay on disk. The weights of a shard unit (model/blocks/shard_hooks.h), for example a layer, are read
// before they are used and freed afterwards, so the largest unit determines the peak memory.
#pragma once
#include <c10/core/Storage.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/blocks/shard_hooks.h"
#include "model/families/families.h"
#include "model/weights_file.h"

namespace lazy {

class OffloadedWeights final : public ShardHooks {
 public:
  // `file` is the folder's weights file, which match_weights() has already accepted for `config`.
  OffloadedWeights(std::unique_ptr<WeightsFile> file, std::filesystem::path directory, const ModelConfig& config);

  // Frees the weights of `parts`; from now on they are loaded when they are used. Weights of matrix products are loaded
  // in dtype `compute`. The other tensors of `stored`, which are not trained, are loaded immediately.
  void take(const std::vector<ShardUnit>& parts, const NamedTensors& stored, at::ScalarType compute);

  void unshard(size_t part, std::optional<size_t> next) override;
  void reshard(size_t part) override;

 private:
  // A tensor of the model and its source in the file: `stored` is the index of the file's tensor in stored_, and `part`
  // is the index of the model's tensor among the parts of this file tensor.
  struct Target {
    size_t stored;
    size_t part;
    at::Tensor tensor;
  };
  struct Held {
    c10::Storage storage;
    int64_t numel;
    at::TensorOptions options;
    at::Tensor memory;  // allocated only while the unit is resident
  };
  struct WeightPart {
    std::vector<Target> targets;
    std::vector<Held> memory;
    int64_t users = 0;
    bool seen = false;  // true: the weights have been read before, so their values need not be checked again
  };
  void read(const std::vector<Target>& targets, bool check) const;
  void hold(WeightPart& part, const at::Tensor& tensor) const;
  void lend(WeightPart& part);

  std::unique_ptr<WeightsFile> file_;
  std::filesystem::path directory_;
  std::vector<StoredTensor> stored_;
  std::map<std::string, std::string> names_;  // the result of match_weights()
  // Maps the name of a model tensor to the index of its file tensor in stored_ and to its index among the parts of that
  // tensor.
  std::map<std::string, std::pair<size_t, size_t>> places_;
  std::vector<WeightPart> parts_;
  std::vector<at::Tensor> spare_;  // memory freed by the previous unit; the next unit reuses it if the sizes match
};

}  // namespace lazy
