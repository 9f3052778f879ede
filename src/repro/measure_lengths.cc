// Losses at lengths beyond the training length, and how alike hidden states become: the one place of src/repro that
// knows how length is measured.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/log.h"
#include "eval/tasks/documents.h"
#include "eval/length/perplexity.h"
#include "repro/subject.h"
#include "sinks/text_source.h"
#include "sinks/probe_measures.h"

namespace lazy::repro {
namespace {

constexpr int64_t kCollapseTexts = 16;

void append(std::vector<int32_t>& ids, const std::vector<int32_t>& more) {
  ids.insert(ids.end(), more.begin(), more.end());
}

// Token streams by name; a benchmark whose file is not there is left out.
std::map<std::string, std::vector<int32_t>> streams(const Subject& subject, const Tokenizer& tokenizer) {
  std::map<std::string, std::vector<int32_t>> out;
  out["heldout"] = sinks::corpus_source(tokenizer, subject.corpus.string(), "validation").ids;
  if (subject.data.empty()) return out;
  if (eval::has_task_files(eval::find_task("wikitext"), subject.data)) {
    for (const std::string& page : eval::length::wikitext_source(subject.data, {}).texts)
      append(out["wikitext"], tokenizer.encode(page));
  }
  if (const eval::Task lambada = eval::find_task("lambada_openai"); eval::has_task_files(lambada, subject.data)) {
    std::string items;  // joined to streams
    for (const eval::Row& row : eval::read_rows(lambada, subject.data))
      items += row.document.at("text").get<std::string>() + "\n\n";
    append(out["lambada_openai"], tokenizer.encode(items));
  }
  return out;
}

Json collapse(Loaded& loaded, const std::vector<int32_t>& ids, int64_t length) {
  const at::NoGradGuard no_grad;
  const int64_t texts = std::min<int64_t>(kCollapseTexts, static_cast<int64_t>(ids.size()) / length);
  std::vector<double> cosine, rank;
  for (int64_t n = 0; n < texts; ++n) {
    std::vector<int64_t> text(ids.begin() + n * length, ids.begin() + (n + 1) * length);
    if (const auto bos = loaded.tokenizer->bos_id()) text.front() = *bos;
    const auto hidden = loaded.model.forward(at::tensor(text, at::kLong).unsqueeze(0).to(loaded.model.device())).hidden;
    const sinks::HiddenSimilarity a = sinks::hidden_similarity(hidden[0]);
    cosine.push_back(a.cosine);
    rank.push_back(a.effective_rank);
  }
  return {{"cosine", cosine}, {"effective_rank", rank}};
}

}  // namespace

Json measure_lengths(const Subject& subject, const Json& settings) {
  Loaded loaded = load(subject);
  const auto lengths = settings.at("lengths").get<std::vector<int64_t>>();
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  Json out = Json::object();
  for (const auto& [name, ids] : streams(subject, *loaded.tokenizer)) {
    if (static_cast<int64_t>(ids.size()) <= longest) {
      log::info("{}: {} tokens, too short for {}: left out", name, ids.size(), longest);
      continue;
    }
    for (const int64_t length : lengths) {
      const std::string title = subject.progress ? fmt::format("{} at {}", name, length) : "";
      const std::string key = std::to_string(length);
      out[name][key] = stream_losses(loaded.model, ids, loaded.tokenizer->bos_id(), longest, length,
                                     settings.at("blocks").get<int64_t>(), title);
      if (name == "heldout") out["collapse"][key] = collapse(loaded, ids, length);
    }
  }
  return out;
}

}  // namespace lazy::repro
