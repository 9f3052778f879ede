// Fuzzes the reader of a model folder's config.json.
#include <nlohmann/json.hpp>

#include "model/config.h"
#include "target.h"

using namespace lazy;

LAZY_FUZZ_TARGET(config_json) {
  fuzz::put("config.json", input);
  const ModelConfig config = ModelConfig::from_directory(fuzz::scratch());
  count_parameters(config);
  // An accepted configuration must be the same after it has been written and read again.
  const auto written = config.to_json();
  try {
    const auto again = ModelConfig::from_json(nlohmann::json::parse(written.dump()), "written").to_json();
    fuzz::require(written == again, "a configuration changed when it was written and read again: " + written.dump() +
                                        " / " + again.dump());
  } catch (const Error& e) {
    fuzz::require(false,
                  "a configuration was written but could not be read again: " + written.dump() + ": " + e.what());
  }
}
