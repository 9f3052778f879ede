// Does a model need its first tokens? Loss on long texts with all keys, with a sliding window alone, and with the
// window and the first four tokens (StreamingLLM's check).
#include <algorithm>
#include <optional>

#include "eval/score.h"
#include "repro/studies/study.h"

namespace lazy::repro {
namespace {

constexpr int64_t kFirst = 4;

}  // namespace

Json streaming_study(const StudyRun& run) {
  const auto texts = run.settings.at("texts").get<int64_t>(), times = run.settings.at("times").get<int64_t>();
  // The window is what the model was trained with, the texts are several times as long.
  const int64_t window = std::min(run.settings.at("window").get<int64_t>(), study_model(run).config().max_length),
                length = times * window;
  StudySubject subject = study_subject(run, texts, length + 1);
  std::vector<eval::Window> windows;
  for (const auto& text : subject.texts)
    windows.push_back({{text.begin(), text.end() - 1}, {text.begin() + 1, text.end()}});
  Json out{{"window_tokens", window},
           {"length", length},
           {"positions", subject.model.config().positions},
           {"bos", subject.bos}};
  const std::pair<const char*, std::optional<StreamingCache>> caches[] = {
      {"full", std::nullopt},
      {"window", StreamingCache{0, window - 1}},
      {"first", StreamingCache{kFirst, window - 1 - kFirst}}};
  for (const auto& [name, cache] : caches) {
    eval::ScoreOptions how{1, run.progress ? name : "", cache, /*targets=*/true};
    for (const eval::Score& score : eval::score(subject.model, windows, how)) {
      // Tokens that the window has not yet lost anything for are the same under every cache: they are left out.
      double sum = 0;
      for (int64_t n = window; n < length; ++n) sum -= score.targets[static_cast<size_t>(n)].log_likelihood;
      out[name].push_back(sum / static_cast<double>(length - window));
    }
  }
  return out;
}

}  // namespace lazy::repro
