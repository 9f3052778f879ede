// Fuzzes the reader of TOML configurations. The input is a configuration, followed by a file that it may extend
// ("base.toml") and by lines of --set overrides. All sections that `lazy train` uses are read.
#include <nlohmann/json.hpp>

#include "core/config.h"
#include "core/text.h"
#include "model/config.h"
#include "target.h"
#include "train/config.h"

using namespace lazy;

LAZY_FUZZ_TARGET(configuration) {
  const auto files = fuzz::parts(input, 3);
  fuzz::put("base.toml", files[1]);
  const auto path = fuzz::put("train.toml", files[0]);
  std::vector<std::string> overrides;
  for (const std::string& line : split(files[2], '\n')) {
    if (!line.empty() && overrides.size() < 8) overrides.push_back(line);
  }
  const auto config = train::TrainConfig::load(path, overrides);
  // An accepted configuration must be the same after it has been written and read again.
  const std::string text = Config::load(path, overrides).to_toml();
  const std::string again = Config::parse(text, "written").to_toml();
  fuzz::require(text == again, "a configuration changed when it was written and read again: " + text + " / " + again);
  const auto copy = fuzz::put("copy.toml", config.toml);
  fuzz::require(train::TrainConfig::load(copy).settings() == config.settings(),
                "the settings are unchanged when the resolved configuration is loaded");
  count_parameters(config.model);
}
