#include "repro/evidence/record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/checksum.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json_field.h"
#include "core/statistics.h"
#include "core/text.h"
#include "data/shards/corpus.h"
#include "measure/model_measures.h"

namespace lazy::repro {
namespace fs = std::filesystem;

namespace {

constexpr const char* kAttentionMeasures[] = {"sink_ratio", "density", "released_mass", "alive_fraction", "tau_mean"};

Json parsed(const std::string& text, const std::string& place, const char* what) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) fail("repro", "{}: expected {}, found text that is not valid JSON", place, what);
  return json;
}

void expect(const OrderedJsonField& record, const std::string& field, const Json& expected) {
  const OrderedJsonField found = record[field];
  if (found.json() != expected)
    fail("repro", "{}: expected {}, found {}; delete the file to repeat the run", found.place(), expected.dump(),
         json_summary(found.json()));
}

double number_or_nan(const Json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_number() ? found->get<double>() : NAN;
}

}  // namespace

fs::path record_path(const fs::path& records, const EvidenceRun& run) { return records / (run.id() + ".json"); }

Json read_record(const fs::path& records, const Protocol& protocol, const EvidenceRun& run,
                 const std::string& corpus_fingerprint) {
  const fs::path path = record_path(records, run);
  if (!fs::exists(path)) return nullptr;
  Json json = parsed(read_file(path), path.string(), "the record of a run");
  const OrderedJsonField record("repro", json, path.string());
  expect(record, "format", kEvidenceFormat);
  expect(record["protocol"], "version", protocol.version);
  expect(record, "block", run.block);
  expect(record, "cell", run.cell);
  expect(record, "seed", run.seed);
  expect(record, "overrides", run.overrides);
  if (!corpus_fingerprint.empty()) expect(record["corpus"], "fingerprint", corpus_fingerprint);
  // Fields that the analysis and the time estimates require.
  record["device"].string();
  for (const char* field : {"training", "measuring"}) record["seconds"][field].number();
  record["tokens"].number();
  record["training"]["loss"].numbers();
  record["measures"]["heldout"]["loss"].number();
  return json;
}

Json training_curves(const fs::path& log, int64_t points) {
  std::vector<Json> steps;
  int64_t number = 0;
  for (const std::string& line : split(read_file(log), '\n')) {
    ++number;
    if (!line.empty()) steps.push_back(parsed(line, fmt::format("{}:{}", log.string(), number), "a line of the log"));
  }
  if (steps.empty()) fail("repro", "{}: expected one line per training step, found an empty file", log.string());
  Json out = {{"tokens", Json::array()}};
  std::vector<double> loss, norm, largest, speed;
  const auto count = static_cast<int64_t>(steps.size()), stretches = std::min(points, count);
  for (int64_t n = 0; n < stretches; ++n) {
    const int64_t begin = n * count / stretches, end = (n + 1) * count / stretches;
    double loss_sum = 0, norm_sum = 0, most = 0;
    for (int64_t i = begin; i < end; ++i) {
      const Json& line = steps[static_cast<size_t>(i)];
      const double gradient = number_or_nan(line, "grad_norm");
      loss_sum += number_or_nan(line, "loss_metrics/global_avg_loss");
      norm_sum += gradient;
      most = std::max(most, gradient);
    }
    const auto each = static_cast<double>(end - begin);
    out["tokens"].push_back(steps[static_cast<size_t>(end - 1)].at("tokens"));
    loss.push_back(loss_sum / each);
    norm.push_back(norm_sum / each);
    largest.push_back(most);
  }
  Json validation = {{"tokens", Json::array()}, {"loss", Json::array()}}, attention = {{"tokens", Json::array()}};
  for (const Json& line : steps) {
    if (const double rate = number_or_nan(line, "throughput(tps)"); std::isfinite(rate)) speed.push_back(rate);
    if (line.contains("validation_metrics/loss")) {
      validation["tokens"].push_back(line.at("tokens"));
      validation["loss"].push_back(rounded(number_or_nan(line, "validation_metrics/loss")));
    }
    if (!line.contains("attention/sink_ratio")) continue;
    attention["tokens"].push_back(line.at("tokens"));
    for (const char* name : kAttentionMeasures) {
      const std::string key = std::string("attention/") + name;
      if (line.contains(key)) attention[name].push_back(rounded(number_or_nan(line, key.c_str())));
    }
  }
  out["loss"] = rounded(loss);
  out["gradient_norm"] = rounded(norm);
  out["largest_gradient_norm"] = rounded(largest);
  out["validation"] = std::move(validation);
  out["attention"] = std::move(attention);
  out["tokens_per_second"] = rounded(median_of(speed));
  out["seconds"] = rounded(number_or_nan(steps.back(), "time"));
  return out;
}

std::string corpus_fingerprint(const fs::path& corpus) {
  std::string text;
  for (const char* name : {"train", "validation"}) {
    for (const Shard& shard : open_shards(corpus, name, ShardCheck::header)) {
      const ShardHeader& h = shard.header();
      text += fmt::format("{} {} {} {:016x} {:016x} {:016x}\n", name, h.tokens, h.documents, h.tokens_checksum,
                          h.index_checksum, h.tokenizer_fingerprint);
    }
  }
  return fmt::format("{:016x}", checksum(text));
}

namespace {

// The excess sink at the largest T, measured with BOS if the model was trained with BOS.
double excess_sink(const Protocol& protocol, const Json& record) {
  const Json& measures = record.at("measures");
  const bool bos = measures.at("heldout").at("bos_per_sequence").get<bool>();
  return measures.at("sinks")
      .at(std::to_string(protocol.sizes.sink_lengths.back()))
      .at(bos ? "bos" : "no_bos")
      .at("excess")
      .get<double>();
}

}  // namespace

BlockCondition block_condition(const Protocol& protocol, const EvidenceBlock& block,
                               const std::function<const Json*(const EvidenceRun&)>& find) {
  if (block.condition.empty()) return {.decided = true};
  double excess = 0;
  int64_t seeds = 0;
  for (const EvidenceRun& run : protocol.runs()) {
    const Json* record = run.block == block.name && run.cell == block.condition ? find(run) : nullptr;
    if (!record) continue;
    excess += excess_sink(protocol, *record);
    ++seeds;
  }
  if (seeds < block.condition_seeds)
    return {fmt::format("waits for {} recorded seeds of {}, found {}", block.condition_seeds, block.condition, seeds)};
  excess /= static_cast<double>(seeds);
  if (excess > block.condition_excess) return {.decided = true};
  return {fmt::format("the excess sink of {} is {:.2f} percentage points, the block requires more than {:.2f}",
                      block.condition, 100 * excess, 100 * block.condition_excess),
          true};
}

}  // namespace lazy::repro
