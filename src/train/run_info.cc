#include "train/run_info.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <ctime>

#include "core/error.h"
#include "core/log.h"
#include "model/device.h"

namespace lazy::train {

namespace {

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace

nlohmann::ordered_json corpus_facts(const Sequences& sequences, int64_t position) {
  auto out = nlohmann::ordered_json::array();
  const auto counts = sequences.counts(position);
  for (size_t i = 0; i < counts.size(); ++i) {
    const auto& part = sequences.parts()[i];
    const double read = static_cast<double>(counts[i]);
    out.push_back({{"name", part.name},
                   {"path", part.path.string()},
                   {"tokens", part.tokens},
                   {"bytes_per_token", part.bytes_per_token},
                   {"sequences", part.sequences},
                   {"weight", part.share},
                   {"share", position > 0 ? read / static_cast<double>(position) : 0.0},
                   {"epochs", read / static_cast<double>(part.sequences)}});
  }
  return out;
}

Scalars data_progress(const Sequences& sequences, int64_t position) {
  Scalars out;
  const auto counts = sequences.counts(position);
  for (size_t i = 0; i < counts.size(); ++i) {
    const auto& part = sequences.parts()[i];
    const double read = static_cast<double>(counts[i]), epochs = read / static_cast<double>(part.sequences);
    if (counts.size() == 1) return {{"data/epochs", epochs}};
    out.emplace_back("data/epochs/" + part.name, epochs);
    out.emplace_back("data/share/" + part.name, read / static_cast<double>(std::max<int64_t>(1, position)));
  }
  return out;
}

TrainConfig with_corpus(TrainConfig config, const Sequences& sequences, const Tokenizer& tokenizer) {
  if (!config.from.empty()) {
    const auto own = load_tokenizer(config.from.string());
    if (own->fingerprint() != tokenizer.fingerprint()) {
      fail("train",
           "{}: the corpus must use the tokenizer of {}, but uses a different one: prepare it with `lazy data prepare "
           "... --tokenizer {}`",
           config.corpus.string(), config.from.string(), config.from.string());
    }
  }
  if (config.vocab_size_from_corpus) config.model.vocab_size = sequences.vocab_size();
  if (sequences.vocab_size() > config.model.vocab_size) {
    fail("train",
         "model.vocab_size: the vocabulary of the corpus {} has {} tokens, but the model supports only {}; omit "
         "vocab_size to use the vocabulary size of the corpus",
         config.corpus.string(), sequences.vocab_size(), config.model.vocab_size);
  }
  if (config.special_ids_from_tokenizer) {
    config.model.bos_token_id = tokenizer.bos_id().value_or(-1);
    config.model.eos_token_id = tokenizer.eos_id().value_or(-1);
  }
  config.model.validate();
  return config;
}

nlohmann::ordered_json run_settings(const TrainConfig& config, const Sequences& sequences) {
  nlohmann::ordered_json out = config.settings();
  const auto model = config.model.to_json();
  for (const auto& [key, value] : model.items()) out["model." + key] = value;
  out["corpus.tokenizer_fingerprint"] = fmt::format("{:016x}", sequences.tokenizer_fingerprint());
  out["corpus.tokens"] = sequences.tokens();
  // A resumed run needs the corpora in the same order, because it determines the order of the sequences.
  if (sequences.parts().size() > 1) {
    for (const auto& part : sequences.parts()) out["corpus.parts"].push_back(part.tokens);
  }
  out["threads"] = thread_count();
  return out;
}

nlohmann::ordered_json run_facts(const TrainConfig& config, const Sequences& sequences, const Tokenizer& tokenizer) {
  const auto count = count_parameters(config.model);
  return {{"name", config.name},
          {"kind", config.model.kind()},
          {"model", config.model.to_json()},
          {"parameters",
           {{"total", count.total}, {"tied", count.tied}, {"untied", count.untied}, {"embedding", count.embedding}}},
          {"steps", config.steps},
          {"tokens_per_step", config.tokens_per_step()},
          {"tokens", config.tokens_per_step() * config.steps},
          {"corpus",
           {{"path", config.corpus.string()},
            {"tokens", sequences.tokens()},
            {"bytes_per_token", sequences.bytes_per_token()},
            {"parts", corpus_facts(sequences, config.tokens_per_step() / config.seq_len * config.steps)}}},
          {"tokenizer",
           {{"kind", tokenizer.kind()},
            {"vocab_size", tokenizer.vocab_size()},
            {"fingerprint", fmt::format("{:016x}", tokenizer.fingerprint())}}},
          {"dtype", config.dtype},
          {"device", config.device},
          {"threads", thread_count()},
          {"seed", config.seed},
          {"version", LAZY_VERSION},
          {"started", utc_now()}};
}

void compare_settings(const nlohmann::ordered_json& checkpoint, const nlohmann::ordered_json& now,
                      const std::string& file) {
  for (const auto& [key, value] : now.items()) {
    const auto found = checkpoint.find(key);
    const nlohmann::ordered_json before = found == checkpoint.end() ? nlohmann::ordered_json() : *found;
    if (before == value) continue;
    if (key.starts_with("model.") || key.starts_with("corpus.")) {
      fail("train",
           "{}: the checkpoint has {} = {}, but the configuration has {}; a run can only continue with the same model "
           "and corpus",
           file, key, before.dump(), value.dump());
    }
    log::warn(
        "resuming with {} = {}, but the checkpoint was trained with {}: results will differ from the original run", key,
        value.dump(), before.dump());
  }
  for (const auto& [key, value] : checkpoint.items()) {
    if (now.contains(key) || key.starts_with("model.") || key.starts_with("corpus.")) continue;
    log::warn("resuming without {}, but the checkpoint was trained with {}: results will differ from the original run",
              key, value.dump());
  }
}

}  // namespace lazy::train
