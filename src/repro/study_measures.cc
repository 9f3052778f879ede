#include "repro/study_measures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/statistics.h"
#include "repro/recipe_file.h"
#include "repro/vector_tables.h"

namespace lazy::repro {
namespace {

using Doubles = std::vector<double>;

template <typename F>
Numbers over_vectors(const Json& values, const MeasureSpec& m, const F& f) {
  const Json found = at_path(values, m.path);
  if (!found.is_array()) return {{}, "", fmt::format("{} was not measured", m.path)};
  Numbers out;
  for (const Json& layer : found) {
    for (const Json& head : layer) out.items.push_back(f(head.get<Doubles>()));
  }
  return out;
}

}  // namespace

std::vector<double> control_by_text(const Json& control) {
  Doubles sum;
  for (const Json& pair : control) {
    const Doubles one = items_of(pair.at("first"));
    sum.resize(sum.empty() ? one.size() : std::min(sum.size(), one.size()));
    for (size_t n = 0; n < sum.size(); ++n) sum[n] += one[n] / static_cast<double>(control.size());
  }
  return sum;
}

Numbers control_measure(const Json& values, const MeasureSpec&) {
  const Json& control = values.at("control");
  Doubles by_text = control_by_text(control);
  // The control was measured on fewer texts than the other conditions; callers compare it with the first texts of those
  // conditions.
  return {by_text, fmt::format("{} random pairs of columns, {} texts", control.size(), by_text.size()), ""};
}

Numbers delta_outliers(const Json& values, const MeasureSpec&) {
  Numbers out;
  for (const Json& layer : values.at("by_layer")) {
    const double gap = mean_of(layer.at("first").get<Doubles>()) - mean_of(layer.at("others_mean").get<Doubles>());
    out.items.push_back(gap > 2 * layer.at("others_std").get<double>() ? 1 : 0);
  }
  return out;
}

Numbers gamma_excess(const Json& values, const MeasureSpec&) {
  const Json& top = values.at("top").at("literal");
  const auto first = top.at(0).at("coordinate").get<size_t>(), second = top.at(1).at("coordinate").get<size_t>();
  Numbers out;
  for (const Json& layer : values.at("gamma")) {
    const Json& all = layer.at("all");
    out.items.push_back((all.at(first).get<double>() + all.at(second).get<double>()) / 2 -
                        layer.at("mean").get<double>());
  }
  return out;
}

Numbers massive_coordinates(const Json& values, const MeasureSpec& m) {
  const Json top = at_path(values, m.path);
  if (!top.is_array() || top.size() < 2) return {{}, "", fmt::format("{} was not measured", m.path)};
  const auto coordinate = [&](size_t n) {
    return (top.at(n).is_object() ? top.at(n).at("coordinate") : top.at(n)).get<int64_t>();
  };
  const int64_t a = coordinate(0), b = coordinate(1);
  const double both = (a == 138 || b == 138) + (a == 447 || b == 447);
  return {{both}, fmt::format("here {} and {}", std::min(a, b), std::max(a, b)), ""};
}

Numbers nearest_row_measure(const Json& values, const MeasureSpec& m) {
  const bool hidden = m.row.size() == 2;
  const RowMatch match = nearest_row(values, m.row);
  const Doubles row = table_row(values, "natural", match.layer, match.head, 0, hidden, match.cut);
  double equal = 0;
  std::string ours;
  for (size_t n = 0; n < row.size(); ++n) {
    equal += std::abs(row[n] - m.row[n]) <= 5e-4 * std::max(1.0, std::abs(m.row[n]));
    ours += fmt::format("{}{:.4f}", n ? ", " : "", row[n]);
  }
  const std::string where = hidden ? fmt::format("layer {}", match.layer)
                                   : fmt::format("layer {}, head {}{}", match.layer, match.head,
                                                 match.cut ? " of the fused projection cut into three blocks" : "");
  return {{equal}, fmt::format("the most similar row is in {}, with the values {}", where, ours), ""};
}

Numbers first_over_others(const Json& values, const MeasureSpec& m) {
  return over_vectors(values, m, [](const Doubles& by_position) {
    return by_position.front() / mean_of({by_position.begin() + 1, by_position.end()}) - 1;
  });
}

Numbers relative_spread(const Json& values, const MeasureSpec& m) {
  return over_vectors(
      values, m, [](const Doubles& by_position) { return std::sqrt(variance_of(by_position)) / mean_of(by_position); });
}

}  // namespace lazy::repro
