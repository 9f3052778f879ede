// A model whose weights stay in its folder: those of a part (model/blocks/shard_hooks.h) are read when they are used,
// and their memory is given back after it. A model of any size takes the memory of its largest part.
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
  // `file`: the folder's, which match_weights has accepted for `config`.
  OffloadedWeights(std::unique_ptr<WeightsFile> file, std::filesystem::path directory, const ModelConfig& config);

  // The weights of `parts` are here no more, but come when they are used: those of products in the precision `compute`,
  // in which they are read. The others of `stored`, which are not trained, are read now.
  void take(const std::vector<ShardUnit>& parts, const NamedTensors& stored, at::ScalarType compute);

  void unshard(size_t part, std::optional<size_t> next) override;
  void reshard(size_t part) override;

 private:
  // A tensor of the model, and where it comes from: a tensor of the file, and which of its parts.
  struct Target {
    size_t stored;
    size_t part;
    at::Tensor tensor;
  };
  struct Held {
    c10::Storage storage;
    int64_t numel;
    at::TensorOptions options;
    at::Tensor memory;  // while it is lent
  };
  struct Part {
    std::vector<Target> targets;
    std::vector<Held> memory;
    int64_t users = 0;
    bool seen = false;  // its values have been looked at once
  };
  void read(const std::vector<Target>& targets, bool check) const;
  void hold(Part& part, const at::Tensor& tensor) const;
  void lend(Part& part);

  std::unique_ptr<WeightsFile> file_;
  std::filesystem::path directory_;
  std::vector<StoredTensor> stored_;
  std::map<std::string, std::string> names_;                 // match_weights'
  std::map<std::string, std::pair<size_t, size_t>> places_;  // of the model's names: stored_, and which of its parts
  std::vector<Part> parts_;
  std::vector<at::Tensor> spare_;  // memory of the part before, which serves the next one where it fits
};

}  // namespace lazy
