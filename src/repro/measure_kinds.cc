#include "repro/measure_kinds.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/error.h"
#include "core/statistics.h"
#include "core/text.h"
#include "model/positions/positions.h"
#include "repro/distance_bias.h"
#include "repro/measure.h"
#include "repro/recipe_file.h"
#include "repro/study_measures.h"

namespace lazy::repro {
namespace {

using Doubles = std::vector<double>;
using Curves = std::vector<std::vector<BiasCurve>>;  // [layer][head][distance]

Json at_parts(const Json& values, const Words& parts, size_t from) {
  if (from == parts.size()) return values;
  const std::string& part = parts[from];
  if (part == "*") {
    if (!values.is_array()) return nullptr;
    Json out = Json::array();
    for (const Json& item : values) out.push_back(at_parts(item, parts, from + 1));
    return out;
  }
  if (values.is_object()) return values.contains(part) ? at_parts(values.at(part), parts, from + 1) : Json();
  const bool or_last = part.starts_with('~');
  const std::string digits = part.substr(or_last ? 1 : 0);
  if (!values.is_array() || values.empty() || digits.empty() ||
      digits.find_first_not_of("0123456789") != std::string::npos)
    return nullptr;
  size_t index = std::stoul(digits);
  if (or_last) index = std::min(index, values.size() - 1);
  return index < values.size() ? at_parts(values.at(index), parts, from + 1) : Json();
}

void add_leaves(const Json& value, double& sum, double& count) {
  if (value.is_number()) sum += value.get<double>(), count += 1;
  if (value.is_array())
    for (const Json& item : value) add_leaves(item, sum, count);
}

double map_number(const std::string& map, double x) {
  if (map == "abs") return std::abs(x);
  if (map == "exp") return std::exp(x);
  return x;
}

Numbers at_path_numbers(const Json& values, const MeasureSpec& m) {
  Numbers out{items_of(at_path(values, m.path)), "", ""};
  if (out.items.empty()) return {{}, "", fmt::format("{} was not measured", m.path)};
  for (double& x : out.items) x = map_number(m.map, m.factor * x);
  const std::string& second = m.minus.empty() ? m.per : m.minus;
  if (second.empty()) return out;
  Doubles other = items_of(at_path(values, second));
  for (double& x : other) x = map_number(m.map, m.factor * x);
  if (other.size() == 1) other.resize(out.items.size(), other.front());
  if (other.size() != out.items.size())
    return {{}, "", fmt::format("{} and {} were not measured on the same items", second, m.path)};
  for (size_t i = 0; i < other.size(); ++i)
    out.items[i] = m.minus.empty() ? out.items[i] / other[i] : out.items[i] - other[i];
  return out;
}

// Converts a range of layers, given for a model with 24 layers, to the first and last layer (1-based) of a model with
// `layers` layers.
std::pair<int64_t, int64_t> layer_range(const MeasureSpec& m, size_t layers) {
  const auto all = static_cast<int64_t>(layers);
  if (m.layers.empty()) return {1, all};
  const auto first_of_24 = static_cast<int64_t>(m.layers[0]), last_of_24 = static_cast<int64_t>(m.layers[1]);
  const int64_t first = first_of_24 == 1 ? 1 : std::min(layer_at(first_of_24 - 1, all) + 1, all);
  return {first, std::max(first, layer_at(last_of_24, all))};
}

double far_bias(const BiasCurve& curve) {
  const auto w = static_cast<int64_t>(curve.size());
  return mean_between(curve, std::min<int64_t>(100, w / 2), w - 1);
}

BiasCurve truncated(const BiasCurve& curve, const MeasureSpec& m) {
  if (m.most.empty()) return curve;
  const size_t most = std::min<size_t>(curve.size(), std::stoul(m.most));
  return {curve.begin(), curve.begin() + static_cast<std::ptrdiff_t>(most)};
}

double of_bias(const BiasCurve& whole, const MeasureSpec& m) {
  const BiasCurve curve = truncated(whole, m);
  if (m.of_head == "slope") return slope(curve, 100);
  if (m.of_head == "size") return mean_magnitude(curve);
  if (m.of_head == "far") return far_bias(curve);
  if (m.of_head == "range") return static_cast<double>(effective_range(curve));
  // 1 if the bias exceeds the threshold up to the end of the window, so that the window limits the measured range.
  if (m.of_head == "at_end")
    return static_cast<double>(effective_range(curve)) >= 0.95 * static_cast<double>(curve.size() - 1);
  return inhibition_of_return(curve).holds;
}

Numbers head_bias(const Json& values, const MeasureSpec& m) {
  if (!values.contains("distance_bias")) return {{}, "", "the model has no distance bias"};
  const auto bias = values.at("distance_bias").get<Curves>();
  const auto [first, last] = layer_range(m, bias.size());
  const auto measure = [&m](const BiasCurve& curve) { return of_bias(curve, m); };
  Numbers out;
  if (m.of_head == "inhibition") {
    if (static_cast<int64_t>(bias[0][0].size()) < kShortestForReturn)
      return {{},
              "",
              fmt::format("the distance bias ends at distance {}, but the pattern of inhibition of return needs more "
                          "than 100 distances",
                          bias[0][0].size() - 1)};
    Words shares;
    for (int64_t l = 1; l <= static_cast<int64_t>(bias.size()); ++l)
      shares.push_back(fmt::format("{:.2g}", mean_of(over_heads(bias, l, l, measure))));
    out.note = fmt::format("share of heads layer by layer: {}", fmt::join(shares, ", "));
  }
  out.items = over_heads(bias, first, last, measure);
  return out;
}

Numbers head_offset(const Json& values, const MeasureSpec& m) {
  if (!values.contains("tau")) return {{}, "", "the model has no learned offsets (tau)"};
  const auto tau = values.at("tau").get<std::vector<Doubles>>();
  const auto [first, last] = layer_range(m, tau.size());
  return {over_heads(tau, first, last, [&m](double t) { return m.of_head == "size" ? std::abs(t) : t; }), "", ""};
}

// Returns |slope / initial slope - 1| for every head with ALiBi.
Numbers alibi_change(const Json& values, const MeasureSpec&) {
  if (!values.contains("alibi_slopes")) return {{}, "", "the model has no ALiBi slopes"};
  Numbers out;
  for (const auto& layer : values.at("alibi_slopes").get<std::vector<Doubles>>()) {
    const Doubles start = alibi_slopes(static_cast<int64_t>(layer.size()));
    for (size_t head = 0; head < layer.size(); ++head) out.items.push_back(std::abs(layer[head] / start[head] - 1));
  }
  return out;
}

// For a toy model: returns the measured value of each token divided by its mean over tokens, for the token ranks given
// by `layers`. Tokens that did not occur are omitted.
Numbers by_rank(const Json& values, const MeasureSpec& m) {
  const Json found = at_path(values, m.path);
  if (!found.is_array() || m.layers.empty()) return {{}, "", fmt::format("{} was not measured", m.path)};
  double sum = 0, count = 0;
  add_leaves(found, sum, count);
  Numbers out;
  for (size_t rank = 0; rank < found.size(); ++rank) {
    const auto r = static_cast<double>(rank);
    if (r >= m.layers[0] && r <= m.layers[1] && found.at(rank).is_number())
      out.items.push_back(found.at(rank).get<double>() * count / sum);
  }
  return out;
}

// Returns the time of Elastic-Softmax divided by the time of softmax, minus 1. The recorded ratios are the inverse:
// softmax time divided by Elastic-Softmax time.
Numbers overhead(const Json& values, const MeasureSpec& m) {
  if (!values.contains(m.path)) return {{}, "", "not measured"};
  const Json& part = values.at(m.path);
  Numbers out;
  for (const double ratio : part.at("ratios").get<Doubles>()) out.items.push_back(1 / ratio - 1);
  out.note = fmt::format("{:.0f} % of pairs alive", 100 * part.at("alive").get<double>());
  return out;
}

// Returns the number of samples in the files of a benchmark set.
Numbers samples(const Json& values, const MeasureSpec& m) {
  if (!values.contains(m.path)) return {{}, "", "no file of this set in the folder --data"};
  return {{values.at(m.path).at("samples").get<double>()}, values.at(m.path).at("files").get<std::string>(), ""};
}

// Returns one number: the mean over the headline accuracies of the benchmarks.
Numbers average_score(const Json& values, const MeasureSpec&) {
  const auto mean = mean_accuracy(values);
  if (!mean) return {{}, "", "no task with an accuracy was evaluated"};
  return {{mean->first}, fmt::format("mean of {} tasks", mean->second), ""};
}

using Function = Numbers (*)(const Json&, const MeasureSpec&);
const std::map<std::string, Function>& functions() {
  static const std::map<std::string, Function> all{{"numbers", at_path_numbers},
                                                   {"head_bias", head_bias},
                                                   {"head_offset", head_offset},
                                                   {"alibi_change", alibi_change},
                                                   {"by_rank", by_rank},
                                                   {"overhead", overhead},
                                                   {"samples", samples},
                                                   {"average_score", average_score},
                                                   {"control", control_measure},
                                                   {"delta_outliers", delta_outliers},
                                                   {"gamma_excess", gamma_excess},
                                                   {"massive_coordinates", massive_coordinates},
                                                   {"nearest_row", nearest_row_measure},
                                                   {"first_over_others", first_over_others},
                                                   {"relative_spread", relative_spread}};
  return all;
}

}  // namespace

Json at_path(const Json& values, const std::string& path, char separator) {
  return at_parts(values, split(path, separator), 0);
}

std::vector<double> items_of(const Json& found) {
  Doubles out;
  const auto add = [&](const Json& item) {
    double sum = 0, count = 0;
    add_leaves(item, sum, count);
    if (count > 0) out.push_back(sum / count);
  };
  if (found.is_array()) {
    for (const Json& item : found) add(item);
  } else {
    add(found);
  }
  return out;
}

Numbers measured_numbers(const Json& values, const MeasureSpec& measure) {
  const auto found = functions().find(measure.kind);
  if (found == functions().end()) fail("repro", "{}: unknown kind of measure {}", measure.where, measure.kind);
  return found->second(values, measure);
}

std::vector<std::string> measure_kinds() {
  Words out;
  for (const auto& [name, function] : functions()) out.push_back(name);
  return out;
}

std::vector<std::string> number_maps() { return {"abs", "exp"}; }
std::vector<std::string> head_measures() { return {"slope", "size", "far", "range", "at_end", "inhibition", "value"}; }

}  // namespace lazy::repro
