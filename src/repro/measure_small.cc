// What needs no pass through a model: learned scalars and curves, and the sizes of benchmark files.
#include <algorithm>

#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "eval/tasks/documents.h"
#include "repro/measure.h"
#include "sinks/attention_maps.h"

namespace lazy::repro {
namespace fs = std::filesystem;

Json measure_learned(const Subject& subject) {
  const report::LearnedParameters learned = sinks::learned_parameters(subject.model);
  Json out = Json::object();
  if (!learned.tau.empty()) out["tau"] = learned.tau;
  if (!learned.distance_bias.empty()) out["distance_bias"] = learned.distance_bias;
  if (!learned.alibi_slopes.empty()) out["alibi_slopes"] = learned.alibi_slopes;
  out["tau_initial"] = learned.tau_initial;
  return out;
}

Json count_datasets(const fs::path& data) {
  if (!fs::is_directory(data))
    fail("repro", "--data {}: expected a folder, found {}", data.string(), fs::exists(data) ? "a file" : "nothing");
  const std::pair<const char*, const char*> beginnings[] = {{"wiki", "wikitext"},
                                                            {"lambada", "lambada"},
                                                            {"piqa", "piqa"},
                                                            {"hellaswag", "hellaswag"},
                                                            {"winogrande", "winogrande"},
                                                            {"arc", "arc"},
                                                            {"social_iqa", "siqa"},
                                                            {"siqa", "siqa"},
                                                            {"boolq", "boolq"}};
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(data)) {
    const std::string extension = entry.path().extension().string();
    if (entry.is_regular_file() && (extension == ".jsonl" || extension == ".txt" || extension == ".raw"))
      files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  Json out = Json::object();
  for (const fs::path& file : files) {
    const std::string stem = file.filename().string();
    for (const auto& [beginning, set] : beginnings) {
      const bool lines = file.extension() == ".jsonl";
      if (!stem.starts_with(beginning) || (!lines && std::string(set) != "wikitext")) continue;
      const std::string content = read_file(file);
      int64_t samples = 0;
      if (lines) {
        for (const std::string& line : split(content, '\n')) samples += strip(line).empty() ? 0 : 1;
      } else {
        samples = static_cast<int64_t>(eval::wikitext_pages(content).size());
      }
      Json& entry = out[set];
      if (entry.is_null()) entry = {{"samples", 0}, {"files", ""}};
      entry["samples"] = entry["samples"].get<int64_t>() + samples;
      entry["files"] =
          entry["files"].get<std::string>() + (entry["files"].get<std::string>().empty() ? "" : ", ") + stem;
      break;
    }
  }
  return out;
}

}  // namespace lazy::repro
