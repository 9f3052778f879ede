#include "repro/utilization.h"

#include <algorithm>
#include <array>

#include "core/error.h"

namespace lazy::repro {
namespace {

struct Measured {
  const char* mixer;
  double small, large;
};

// 55M: tokens/s of docs/results/compare-55m.md's trainings where nothing else was on the card; 340M: `lazy bench
// mixers` (docs/mixers.md). TTT and Titans were not trained whole at 340M: their 55M shares serve for both.
constexpr std::array<Measured, 10> kMixers{{{"retnet", 0.26, 0.38},
                                            {"mamba2", 0.12, 0.22},
                                            {"delta_net", 0.20, 0.37},
                                            {"gated_delta_net", 0.23, 0.24},
                                            {"ttt_linear", 0.045, 0.045},
                                            {"ttt_mlp", 0.021, 0.021},
                                            {"titans_lmm", 0.026, 0.026},
                                            {"titans_mac", 0.018, 0.018},
                                            {"titans_mag", 0.023, 0.023},
                                            {"titans_mal", 0.024, 0.024}}};

// softmax and Elastic-Softmax: 0.34 (55M) to 0.37 (340M, Lazy) and 0.44 (softmax), docs/training.md. The normalizers
// that the portable kernels serve: sparsemax trains at 0.27 (docs/results/table2-55m.md).
constexpr double kAttention = 0.35, kPortable = 0.26;

}  // namespace

double gpu_utilization(const ModelConfig& model, bool large) {
  if (model.all_attention()) {
    const bool portable =
        model.normalizer == "sparsemax" || model.normalizer == "entmax15" || model.normalizer == "sigmoid";
    return portable ? kPortable : kAttention;
  }
  const auto found =
      std::find_if(kMixers.begin(), kMixers.end(), [&](const Measured& m) { return model.mixer == m.mixer; });
  if (found == kMixers.end()) fail("repro", "expected a mixer whose speed is known, found {}", model.mixer);
  return large ? found->large : found->small;
}

}  // namespace lazy::repro
