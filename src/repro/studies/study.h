// Studies: what recipes measure on a model folder that the user gives, or on toys that are trained on the spot.
// Settings in, numbers out as JSON; a step of kind `study` is one of them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "model/language_model.h"
#include "repro/step.h"

namespace lazy::repro {

struct StudyRun {
  Json settings;  // "study" names it; "model" and "text" say on what
  std::string device = "cpu";
  bool progress = true;
};

// Error when there is no study of that name.
Json run_study(const StudyRun& run);
// What it may take, in seconds, on two CPU cores and a model of 124M parameters.
double study_seconds(const Json& settings);

// One of each, in files of their names.
Json gamma_study(const StudyRun& run);
Json delta_study(const StudyRun& run);
Json positions_study(const StudyRun& run);
Json interventions_study(const StudyRun& run);
Json toy_study(const StudyRun& run);
Json repetition_study(const StudyRun& run);
Json vectors_study(const StudyRun& run);
Json streaming_study(const StudyRun& run);
Json spread_study(const StudyRun& run);
Json mask_study(const StudyRun& run);

// What several of them share: the model on its device, and texts of one length that begin with BOS where the vocabulary
// has one.
struct StudySubject {
  LanguageModel model;
  std::vector<std::vector<int64_t>> texts;
  bool bos = false;
};
StudySubject study_subject(const StudyRun& run, int64_t texts, int64_t length);
// The texts alone, without BOS.
std::vector<std::vector<int64_t>> texts_without_bos(const StudyRun& run, int64_t texts, int64_t length);
LanguageModel study_model(const StudyRun& run);
// The numbers of a tensor of one or two dimensions.
std::vector<double> numbers_of(const at::Tensor& tensor);
std::vector<std::vector<double>> rows_of(const at::Tensor& tensor);

}  // namespace lazy::repro
