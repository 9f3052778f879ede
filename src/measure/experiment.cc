#include "measure/experiment.h"

#include <ATen/ATen.h>

#include "core/error.h"
#include "measure/texts.h"
#include "sinks/analysis.h"

namespace lazy::measure {
namespace {

std::vector<std::vector<int64_t>> spread_texts(const ExperimentInputs& run, const Tokenizer& tokenizer, int64_t texts,
                                               int64_t length, std::optional<int32_t> bos) {
  std::vector<int32_t> ids;
  if (run.settings.contains("corpus")) {
    ids = sinks::corpus_source(tokenizer, run.settings.at("corpus").get<std::string>(), "validation").ids;
  } else {
    const auto paths = run.settings.value("text", std::vector<std::string>());
    if (paths.empty()) fail("measure", "expected --text FILE or FOLDER, or --corpus DIR, found neither");
    ids = text_tokens(paths, tokenizer);
  }
  auto out = sinks::spread_samples(ids, length, texts, bos);
  if (out.empty()) fail("measure", "--text: expected at least {} tokens, found {}", length, ids.size());
  return out;
}

}  // namespace

LanguageModel experiment_model(const ExperimentInputs& run) {
  LanguageModel model = LanguageModel::load(run.settings.at("model").get<std::string>());
  if (run.device == "cuda") model.to(at::Device(at::kCUDA, 0));
  return model;
}

std::vector<std::vector<int64_t>> texts_without_bos(const ExperimentInputs& run, int64_t texts, int64_t length) {
  return spread_texts(run, *load_tokenizer(run.settings.at("model").get<std::string>()), texts, length, std::nullopt);
}

ModelAndTexts model_and_texts(const ExperimentInputs& run, int64_t texts, int64_t length) {
  const auto tokenizer = load_tokenizer(run.settings.at("model").get<std::string>());
  const auto bos = tokenizer->bos_id();
  return {experiment_model(run), spread_texts(run, *tokenizer, texts, length, bos), bos.has_value()};
}

std::vector<double> numbers_of(const at::Tensor& tensor) {
  const at::Tensor t = tensor.detach().to(at::kCPU, at::kDouble).contiguous();
  return {t.data_ptr<double>(), t.data_ptr<double>() + t.numel()};
}

std::vector<std::vector<double>> rows_of(const at::Tensor& tensor) {
  std::vector<std::vector<double>> rows;
  for (int64_t i = 0; i < tensor.size(0); ++i) rows.push_back(numbers_of(tensor[i]));
  return rows;
}

}  // namespace lazy::measure
