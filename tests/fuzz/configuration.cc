// A TOML configuration; then the one it may extend ("base.toml") and lines of --set overrides. Everything that `lazy
// train` reads of it is read.
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
  // What is accepted can be written, and is then read as the same.
  const std::string text = Config::load(path, overrides).to_toml();
  const std::string again = Config::parse(text, "written").to_toml();
  fuzz::require(text == again, "written and read: " + text + " / " + again);
  const auto copy = fuzz::put("copy.toml", config.toml);
  fuzz::require(train::TrainConfig::load(copy).settings() == config.settings(),
                "the resolved configuration is the same run");
  count_parameters(config.model);
}
