// Fuzzes the reader of the index of sharded weights.
#include "model/weight_map.h"

#include "target.h"

using namespace lazy;

LAZY_FUZZ_TARGET(weight_map) {
  const auto path = fuzz::put("model.safetensors.index.json", input);
  for (const auto& [file, names] : read_weight_map(path, "fuzz")) {
    fuzz::require(!names.empty(), "each file has tensors");
    fuzz::require(std::filesystem::path(file).filename() == file && file != ".." && file != ".",
                  "files are in the same folder as the index");
  }
}
