// What the length measures ask of a model: the log-likelihood of every target of every window. A function, so that a
// test can put a rule with known answers in a model's place.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "eval/score.h"
#include "eval/windows.h"
#include "model/language_model.h"

namespace lazy::eval::length {

using Scorer = std::function<std::vector<Score>(const std::vector<Window>& windows, const std::string& title)>;

// Windows go through `model`, which the function keeps alive.
Scorer scorer(std::shared_ptr<LanguageModel> model, ScoreOptions options, bool progress);

}  // namespace lazy::eval::length
