// Losses and sink measures on held-out text, and on folders of text of other kinds.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "core/error.h"
#include "data/corpus/documents.h"
#include "data/sequences.h"
#include "eval/score.h"
#include "model/tokenizer_match.h"
#include "repro/subject.h"
#include "sinks/source.h"
#include "sinks/study.h"

namespace lazy::repro {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kMostBytes = 16 << 20;

// A few zero bytes tell a picture or an archive from text.
bool is_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string head(4096, '\0');
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<size_t>(file.gcount()));
  return !head.empty() && head.find('\0') == std::string::npos;
}

Json to_json(const SampleMeasures& m) {
  return {{"sink_ratio", m.sink_ratio},
          {"density", m.density},
          {"released_mass", m.released_mass},
          {"alive_fraction", m.alive_fraction},
          {"by_layer", m.by_layer}};
}

}  // namespace

std::vector<int32_t> text_tokens(const std::vector<std::string>& paths, const Tokenizer& tokenizer) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    if (!fs::is_directory(path)) {
      if (!fs::exists(path)) fail("repro", "{}: expected a file or folder of text, found nothing", path);
      files.push_back(path);
      continue;
    }
    std::vector<std::string> inside;
    for (const auto& entry : fs::recursive_directory_iterator(path)) {
      const std::string extension = entry.path().extension().string();
      const bool packed = extension == ".gz" || extension == ".zst" || extension == ".parquet";
      if (entry.is_regular_file() && (packed || is_text(entry.path()))) inside.push_back(entry.path().string());
    }
    if (inside.empty()) fail("repro", "{}: expected files of text, found none", path);
    std::sort(inside.begin(), inside.end());
    files.insert(files.end(), inside.begin(), inside.end());
  }
  DocumentReader reader(find_sources(files, TextFormat::plain), {});
  std::vector<int32_t> ids;
  RawBatch raw;
  int64_t bytes = 0;
  while (bytes < kMostBytes && reader.next(raw)) {
    for (const std::string& document : extract_documents(std::move(raw), reader.options()).documents) {
      const auto more = tokenizer.encode(document);
      ids.insert(ids.end(), more.begin(), more.end());
      bytes += static_cast<int64_t>(document.size());
    }
    raw = {};
  }
  return ids;
}

Json measure_heldout(const Subject& subject, const Json& settings) {
  Loaded loaded = load(subject);
  SequenceOptions how;
  how.length = loaded.model.config().max_length;
  how.bos_per_sequence = settings.at("bos").get<bool>();
  how.shuffle = false;
  const Sequences sequences(subject.corpus, "validation", how);
  check_tokenizer(loaded.model.config(), sequences.tokenizer_fingerprint(), sequences.vocab_size(),
                  subject.corpus.string());
  const int64_t count = std::min(sequences.size(), settings.at("sequences").get<int64_t>());
  if (count == 0)
    fail("repro", "{}: the validation split has no sequence of {} tokens", subject.corpus.string(), how.length);
  std::vector<eval::Window> windows;
  std::vector<int64_t> ids(static_cast<size_t>(how.length));
  for (int64_t i = 0; i < count; ++i) {
    sequences.read(i * (sequences.size() / count), ids.data());
    windows.push_back({{ids.begin(), ids.end() - 1}, {ids.begin() + 1, ids.end()}});
  }
  std::vector<double> losses;
  const eval::ScoreOptions scoring{std::max<int64_t>(1, 2048 / how.length), subject.progress ? "held-out loss" : "",
                                   streaming_cache(settings)};
  for (const eval::Score& s : eval::score(loaded.model, windows, scoring)) {
    losses.push_back(-s.log_likelihood / static_cast<double>(how.length - 1));
  }
  return {{"loss", losses}, {"tokens_each", how.length - 1}, {"bytes_per_token", sequences.bytes_per_token()}};
}

Json measure_sinks(const Subject& subject, const Json& settings) {
  Loaded loaded = load(subject);
  const auto source = sinks::corpus_source(*loaded.tokenizer, subject.corpus.string(), "validation");
  const auto bos = settings.at("bos").get<bool>() ? loaded.tokenizer->bos_id() : std::nullopt;
  const int64_t length = loaded.model.config().max_length;
  const auto samples = sinks::spread_samples(source.ids, length, settings.at("samples").get<int64_t>(), bos);
  if (samples.empty())
    fail("repro", "{}: the validation split has fewer than {} tokens", subject.corpus.string(), length);
  return to_json(sink_measures(loaded.model, samples, subject.progress ? "sinks" : ""));
}

Json measure_domain(const Subject& subject, const Json& settings) {
  Loaded loaded = load(subject);
  const int64_t length = loaded.model.config().max_length, blocks = settings.at("blocks").get<int64_t>();
  const auto ids = text_tokens({subject.domain.string()}, *loaded.tokenizer);
  const auto bos = loaded.tokenizer->bos_id();
  const auto samples = sinks::spread_samples(ids, length, blocks, bos);
  if (samples.empty())
    fail("repro", "--domain {}: expected at least {} tokens of text, found {}", subject.domain.string(), length,
         ids.size());
  Json out = to_json(sink_measures(loaded.model, samples, ""));
  out["loss"] = stream_losses(loaded.model, ids, bos, length, length, blocks, subject.progress ? "loss" : "");
  out["tokens"] = ids.size();
  return out;
}

}  // namespace lazy::repro
