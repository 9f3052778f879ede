// The sizes of the measurements of `lazy measure model`.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace lazy::measure {

// configs/evidence.toml describes the fields in its section [measures], except snapshot_tokens.
struct MeasureSizes {
  std::string dtype = "auto";
  int64_t heldout_tokens = 8'000'000;
  std::vector<int64_t> sink_lengths{64, 512};
  int64_t sink_tokens = 262'144;
  std::vector<int64_t> lengths{512, 1024, 2048, 4096};
  int64_t length_blocks = 256;
  double other_rope_base = 1.5e5;
  int64_t probe_samples = 32, collapse_samples = 8;
};

}  // namespace lazy::measure
