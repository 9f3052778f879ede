#include "train/description.h"

#include <ATen/Parallel.h>

#include <ctime>
#include <nlohmann/json.hpp>

#include "core/error.h"

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

TrainConfig with_corpus(TrainConfig config, const Sequences& sequences, const Tokenizer& tokenizer) {
  if (config.vocab_size_from_corpus) config.model.vocab_size = sequences.vocab_size();
  if (sequences.vocab_size() > config.model.vocab_size) {
    fail("train", "model.vocab_size: the corpus {} has a vocabulary of {}, the model only {}; leave vocab_size out to take the corpus's",
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
  out["threads"] = at::get_num_threads();
  return out;
}

nlohmann::ordered_json run_facts(const TrainConfig& config, const Sequences& sequences, const Tokenizer& tokenizer) {
  const auto count = count_parameters(config.model);
  return {{"name", config.name},
          {"kind", config.model.kind()},
          {"model", config.model.to_json()},
          {"parameters", {{"total", count.total}, {"tied", count.tied}, {"untied", count.untied}, {"embedding", count.embedding}}},
          {"steps", config.steps},
          {"tokens_per_step", config.tokens_per_step()},
          {"tokens", config.tokens_per_step() * config.steps},
          {"corpus", {{"path", config.corpus.string()}, {"tokens", sequences.tokens()}, {"bytes_per_token", sequences.bytes_per_token()}}},
          {"tokenizer", {{"kind", tokenizer.kind()}, {"vocab_size", tokenizer.vocab_size()},
                         {"fingerprint", fmt::format("{:016x}", tokenizer.fingerprint())}}},
          {"dtype", config.dtype},
          {"device", config.device},
          {"threads", at::get_num_threads()},
          {"seed", config.seed},
          {"version", LAZY_VERSION},
          {"started", utc_now()}};
}

}  // namespace lazy::train
