#include "sinks/further.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/error.h"

namespace lazy::sinks {
namespace {

using nlohmann::ordered_json;

// Hidden states as the residual stream and, as the paper's tables have them, after the norm; keys before their norm and
// rotation.
constexpr const char* kVectorPlaces[] = {"residual", "attention.input", "attention.q.projected",
                                         "attention.k.projected", "attention.v"};

double mean_over(const std::vector<Alikeness>& samples, double Alikeness::*value) {
  double sum = 0;
  for (const Alikeness& a : samples) sum += a.*value;
  return samples.empty() ? 0 : sum / static_cast<double>(samples.size());
}

}  // namespace

FurtherMeasuring::FurtherMeasuring(const LanguageModel& model, const std::vector<std::string>& measures,
                                   double threshold) {
  const int64_t layers = model.config().num_layers;
  for (const std::string& measure : measures) {
    if (measure == "weights") {
      weights_.emplace(model, threshold);
    } else if (measure == "vectors") {
      for (const char* place : kVectorPlaces) vectors_.emplace_back(place);
    } else if (measure == "massive") {
      massive_.emplace(layers);
    } else if (measure == "collapse") {
      collapse_.emplace(layers);
    } else {
      fail("sinks", "--measures: expected all or some of {}, found '{}'", fmt::join(kFurtherMeasures, ", "), measure);
    }
  }
}

void FurtherMeasuring::watch(Probes& probes, bool short_samples, bool matrices) {
  if (short_samples) {
    if (weights_) weights_->watch(probes, matrices);
    for (VectorStatistics& vectors : vectors_) vectors.watch(probes);
  } else {
    if (massive_) massive_->watch(probes);
    if (collapse_) collapse_->watch(probes);
  }
}

FurtherMeasures FurtherMeasuring::result() const {
  FurtherMeasures out;
  if (weights_) out.weights = weights_->result();
  for (const VectorStatistics& vectors : vectors_) out.vectors[vectors.place()] = vectors.result();
  if (massive_) out.massive = massive_->result();
  if (collapse_) out.collapse = collapse_->result();
  return out;
}

ordered_json nested(const at::Tensor& tensor) {
  if (tensor.dim() == 0) return tensor.item<double>();
  ordered_json out = ordered_json::array();
  for (int64_t i = 0; i < tensor.size(0); ++i) out.push_back(nested(tensor[i]));
  return out;
}

ordered_json to_json(const FurtherMeasures& further) {
  ordered_json out = ordered_json::object();
  if (further.weights) {
    const auto& w = *further.weights;
    out["weights"] = {{"alpha", nested(w.alpha.mean(1))},
                      {"sink_k", nested(w.sink.mean(at::IntArrayRef{0, 1}))},
                      {"sink_k_by_layer", nested(w.sink.mean(1))},
                      {"sink_1_by_head", nested(w.sink.select(2, 0))},
                      {"entropy", nested(w.entropy)},
                      {"threshold", w.threshold},
                      {"samples", w.samples}};
  }
  for (const auto& [place, values] : further.vectors) {
    out["vectors"][place] = {{"norm", nested(values.norm.mean(1))}, {"variance", nested(values.variance.mean(1))}};
  }
  for (const auto& place : further.massive) {
    ordered_json entry{{"largest", place.largest},
                       {"median", place.median},
                       {"per_sample", place.count},
                       {"position", place.position},
                       {"dimension", place.dimension}};
    entry["dimensions"] = ordered_json::object();
    for (const auto& [dimension, count] : place.by_dimension) entry["dimensions"][std::to_string(dimension)] = count;
    entry["positions"] = ordered_json::object();
    for (const auto& [position, count] : place.by_position) entry["positions"][std::to_string(position)] = count;
    out["massive"].push_back(entry);
  }
  for (const auto& samples : further.collapse) {
    ordered_json entry;
    for (const Alikeness& a : samples)
      entry["cosine"].push_back(a.cosine), entry["effective_rank"].push_back(a.effective_rank);
    out["collapse"].push_back(entry);
  }
  return out;
}

std::string to_table(const FurtherMeasures& further) {
  std::string out;
  if (further.weights) {
    const auto& w = *further.weights;
    const at::Tensor sink = w.sink.mean(at::IntArrayRef{0, 1}), entropy = w.entropy.mean(1);
    out += fmt::format("Sink_k^{:g}, k = 1, 2, ...:", w.threshold);
    for (int64_t k = 0; k < std::min<int64_t>(8, sink.size(0)); ++k)
      out += fmt::format(" {:.2f}%", 100 * sink[k].item<double>());
    out += fmt::format("\nentropy by layer, nats:");
    for (int64_t l = 0; l < entropy.size(0); ++l) out += fmt::format(" {:.2f}", entropy[l].item<double>());
    out += "\n";
  }
  for (const auto& [place, values] : further.vectors) {
    const at::Tensor norm = values.norm.mean(1), variance = values.variance.mean(1);
    out += fmt::format("{} at the first position / median of the others, by layer: norm", place);
    for (const at::Tensor* t : {&norm, &variance}) {
      for (int64_t l = 0; l < t->size(0); ++l)
        out += fmt::format(" {:.3g}", ((*t)[l][0] / (*t)[l].slice(0, 1).median()).item<double>());
      out += t == &norm ? "; variance" : "\n";
    }
  }
  for (size_t l = 0; l < further.massive.size(); ++l) {
    const auto& m = further.massive[l];
    if (m.count == 0) continue;
    out += fmt::format(
        "massive activations {}: {:.1f} a sample, largest {:.0f} (position {}, dimension {}), median {:.3g}\n",
        l + 1 < further.massive.size() ? fmt::format("before layer {}", l + 1) : std::string("after the last layer"),
        m.count, m.largest, m.position + 1, m.dimension, m.median);
  }
  if (!further.massive.empty() &&
      std::all_of(further.massive.begin(), further.massive.end(), [](const auto& m) { return m.count == 0; })) {
    out += "no massive activations\n";
  }
  if (!further.collapse.empty()) {
    out += "hidden states before each layer, after the last, after the norm: pairwise cosine";
    for (const auto& samples : further.collapse) out += fmt::format(" {:.3f}", mean_over(samples, &Alikeness::cosine));
    out += "; effective rank";
    for (const auto& samples : further.collapse)
      out += fmt::format(" {:.1f}", mean_over(samples, &Alikeness::effective_rank));
    out += "\n";
  }
  return out;
}

}  // namespace lazy::sinks
