#include "eval/length/scorer.h"

namespace lazy::eval::length {

Scorer scorer(std::shared_ptr<LanguageModel> model, ScoreOptions options, bool progress) {
  return [=](const std::vector<Window>& windows, const std::string& title) {
    ScoreOptions now = options;
    now.title = progress ? title : "";
    now.targets = true;
    return score(*model, windows, now);
  };
}

}  // namespace lazy::eval::length
