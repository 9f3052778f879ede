// The configurations of configs/ that recipes extend, carried inside the program so that it runs from anywhere.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "repro/step.h"
#include "train/config.h"

namespace lazy::repro {

// (path below configs/, content)
const std::vector<std::pair<std::string_view, std::string_view>>& embedded_configs();
// Writes them below `folder`; files that are there already and equal are left alone.
void write_configs(const std::filesystem::path& folder);

// The configuration of a training step. `configs` is where write_configs put them; `output` and `corpus` may not exist
// yet.
train::TrainConfig train_config(const Step& step, const std::filesystem::path& configs,
                                const std::filesystem::path& corpus, const std::filesystem::path& output,
                                const std::vector<std::string>& more = {});

}  // namespace lazy::repro
