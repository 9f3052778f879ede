#include "report/length_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/text.h"
#include "report/heat_map.h"
#include "report/html.h"
#include "report/plot.h"
#include "report/report.h"
#include "report/sections.h"
#include "report/style.h"

namespace lazy::report {

namespace {

// A table without scope attributes on its header cells.
Table plain_table(const std::vector<std::string>& columns) {
  Table table{.column_scope = false, .row_scope = false};
  for (const std::string& column : columns) table.columns.push_back(column);
  return table;
}

// One value with its interval; low and high are NaN without an interval.
struct Point {
  double x = 0, value = 0, low = NAN, high = NAN;
};

Point point(double x, const Field& row, const std::string& key) {
  Point p{x, row[key].number()};
  const std::string interval = key + "_interval";
  if (row.has(interval)) {
    p.low = row[interval].at(0).number();
    p.high = row[interval].at(1).number();
  }
  return p;
}

// Adds a curve with a mark at every point and a vertical bar for its interval.
void add(Plot& plot, const std::vector<Point>& points, size_t model, const std::string& css_class = "curve ") {
  Curve curve{{}, css_class + series_class(model), true, series_mark(model)};
  for (const Point& p : points) {
    if (std::isfinite(p.low) && std::isfinite(p.high))
      plot.curves.push_back({{{p.x, p.low}, {p.x, p.high}}, "curve thin " + series_class(model)});
    curve.points.emplace_back(p.x, p.value);
  }
  plot.curves.push_back(curve);
}

// Fits the axes to the curves. The y axis is logarithmic if the range exceeds a factor of 4 and `may_be_log` is set.
void fit(Plot& plot, bool may_be_log) {
  fit_axes(plot);
  if (may_be_log && plot.y_low > 0 && plot.y_high > 4 * plot.y_low) {
    plot.y_kind = Scale::Kind::log;
    plot.y_low /= 1.1;
    plot.y_high *= 1.1;
  } else {
    const double margin = std::max(0.06 * (plot.y_high - plot.y_low), 1e-3 * std::fabs(plot.y_high) + 1e-6);
    plot.y_low -= margin;
    plot.y_high += margin;
  }
  plot.x_kind = Scale::Kind::log;
  plot.x_ticks = Plot::XTicks::powers;
}

std::string value_text(double value) {
  const double size = std::fabs(value);
  return !std::isfinite(value) ? "not finite"
         : size >= 1e5         ? human_count(value)
                               : fixed(value, size < 10     ? 3
                                              : size < 1000 ? 2
                                                            : 0);
}

Cell cell(const Point& p) {
  return with_line(value_text(p.value), std::isfinite(p.low) && std::isfinite(p.high)
                                            ? fmt::format("{} to {}", value_text(p.low), value_text(p.high))
                                            : "");
}

std::string length_name(const Field& models, size_t index) {
  return series_name(index, models.at(index)["label"].string());
}

std::string length_legend(const Field& models) {
  std::string items;
  for (size_t m = 0; m < models.size(); ++m) items += length_name(models, m);
  return "<p class=\"legend\">" + items + "</p>";
}

std::string perplexity_by_length(const Field& models, const Field& result) {
  Plot plot{.label = "Perplexity by tokens in the window"};
  const Field first = result["models"].at(0)["lengths"].at(0);
  const bool words = first.has("word_perplexity") && first.has("words");
  const std::string key = words ? "word_perplexity" : "perplexity";
  plot.x_label = "tokens in the window";
  plot.y_label = words ? "perplexity per word" : "perplexity per token";
  for (size_t m = 0; m < models.size(); ++m) {
    std::vector<Point> points;
    const Field rows = result["models"].at(m)["lengths"];
    for (size_t l = 0; l < rows.size(); ++l) points.push_back(point(rows.at(l)["length"].number(), rows.at(l), key));
    if (!points.empty())
      plot.label +=
          fmt::format("; {}: {} at {}, {} at {}", models.at(m)["label"].string(), value_text(points.front().value),
                      points.front().x, value_text(points.back().value), points.back().x);
    add(plot, points, m);
  }
  fit(plot, true);
  return figure(
      length_legend(models) + draw_responsive(plot),
      "Every length is evaluated on the same tokens. Bars are 95\u2009% confidence intervals. Lower is better" +
          std::string(plot.y_kind == Scale::Kind::log ? "; logarithmic." : "."));
}

std::string loss_by_position(const Field& models, const Field& result) {
  Plot plot{.label = "Loss by the number of tokens that the model sees"};
  plot.x_label = "tokens before the predicted token";
  plot.y_label = "loss, nats per token";
  double longest = 0;
  for (size_t m = 0; m < models.size(); ++m) {
    const Field rows = result["models"].at(m)["lengths"];
    const Field last = rows.at(rows.size() - 1);
    if (!last.has("positions")) return "";
    longest = std::max(longest, last["length"].number());
    std::vector<Point> points;
    for (size_t b = 0; b < last["positions"].size(); ++b) {
      const Field bin = last["positions"].at(b);
      points.push_back(point(bin["to"].number(), bin, "loss"));
    }
    add(plot, points, m);
  }
  fit(plot, false);
  return figure(
      length_legend(models) + draw_responsive(plot),
      fmt::format("Windows of {:.0f} tokens. A mark is the mean loss of the tokens whose number of preceding tokens "
                  "is at most the mark's position and above the position of "
                  "the previous mark. Bars: 95\u2009% intervals.",
                  longest));
}

std::string length_table(const Field& models, const Field& result, const std::string& key, const std::string& what) {
  std::vector<double> lengths;
  for (size_t m = 0; m < models.size(); ++m) {
    const Field rows = result["models"].at(m)["lengths"];
    for (size_t l = 0; l < rows.size(); ++l) lengths.push_back(rows.at(l)["length"].number());
  }
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  Table table = plain_table({what});
  for (size_t m = 0; m < models.size(); ++m) table.columns.push_back(length_name(models, m));
  for (const double length : lengths) {
    Table::Row& row = table.rows.emplace_back();
    row.title = fmt::format("{:.0f}", length);
    for (size_t m = 0; m < models.size(); ++m) {
      const Field rows = result["models"].at(m)["lengths"];
      Cell text{"–"};
      for (size_t l = 0; l < rows.size(); ++l) {
        if (rows.at(l)["length"].number() == length) text = cell(point(length, rows.at(l), key));
      }
      row.cells.push_back(text);
    }
  }
  return to_html(table);
}

std::string change_table(const Field& models, const Field& result) {
  if (!result.has("change_against_first") || result["change_against_first"].size() == 0) return "";
  Table table = plain_table({"model", "window", "difference"});
  const Field rows = result["change_against_first"];
  for (size_t r = 0; r < rows.size(); ++r) {
    const Field lengths = rows.at(r)["lengths"];
    for (size_t l = 0; l < lengths.size(); ++l) {
      Point p{lengths.at(l)["length"].number(), lengths.at(l)["difference"].number()};
      if (lengths.at(l).has("interval")) {
        p.low = lengths.at(l)["interval"].at(0).number();
        p.high = lengths.at(l)["interval"].at(1).number();
      }
      table.rows.push_back({length_name(models, static_cast<size_t>(rows.at(r)["model"].number())),
                            {fmt::format("{:.0f}", p.x), cell(p)}});
    }
  }
  return fmt::format(
      "<h3>Which model loses more with length</h3><p class=\"notes\">The change of the loss from the shortest window, "
      "minus the same change of {}, in nats per token, on the same documents. Above zero, the loss of the model "
      "increases more. If the interval (95\u2009%) contains zero, the difference is not significant.</p>{}",
      length_name(models, 0), to_html(table));
}

std::string lambada_words(const Field& models, const Field& result) {
  Table table = plain_table({"model", "max_length", "accuracy", "perplexity"});
  for (size_t m = 0; m < models.size(); ++m) {
    const Field standard = result["models"].at(m)["standard"];
    table.rows.push_back({length_name(models, m),
                          {fmt::format("{:.0f}", standard["max_length"].number()),
                           cell(point(0, standard, "word_accuracy")), cell(point(0, standard, "word_perplexity"))}});
  }
  return "<h3>Accuracy of the last words of the items in the streams</h3>" +
         length_table(models, result, "word_accuracy", "stream") +
         "<h3>Perplexity of the last words of the items in the streams</h3>" +
         length_table(models, result, "word_perplexity", "stream") +
         "<h3>Standard score, with each item in a separate context</h3>" + to_html(table);
}

std::string probe_maps(const Field& models, const Field& result, const std::string& task) {
  std::string panels;
  // If the same context was also scored without the planted fact, the plot shows the gain in log-likelihood from the
  // fact, because absolute levels differ between models.
  const bool gain = result["models"].at(0)["lengths"].at(0)["depths"].at(0).has("log_likelihood_absent");
  Plot plot{.label = "Log-likelihood of the answer by length, mean over depths"};
  plot.x_label = "tokens in the context";
  plot.y_label = gain ? "log-likelihood gained, nats" : "log-likelihood of the answer, nats";
  for (size_t m = 0; m < models.size(); ++m) {
    const Field rows = result["models"].at(m)["lengths"];
    HeatMap map{.label = fmt::format("{}: share of exact answers by depth and length, {}", task,
                                     models.at(m)["label"].string())};
    map.row_name = "depth";
    map.column_name = "length";
    map.values.resize(rows.at(0)["depths"].size());
    std::vector<Point> planted;
    for (size_t l = 0; l < rows.size(); ++l) {
      const double length = rows.at(l)["length"].number();
      map.column_labels.push_back(length_label(length));
      const Field depths = rows.at(l)["depths"];
      double mean = 0;
      for (size_t d = 0; d < depths.size(); ++d) {
        if (l == 0) map.row_labels.push_back(fmt::format("{:g} %", 100 * depths.at(d)["depth"].number()));
        if (d >= map.values.size()) depths.at(d).wrong("the same depths at every length");
        map.values[d].push_back(depths.at(d)["exact"].share());
        const double absent = gain ? depths.at(d)["log_likelihood_absent"].number() : 0;
        mean += (depths.at(d)["log_likelihood"].number() - absent) / static_cast<double>(depths.size());
      }
      planted.push_back({length, mean});
    }
    add(plot, planted, m);
    panels += "<div class=\"panel\"><h4>" + length_name(models, m) + "</h4>" + draw(map) + "</div>";
  }
  fit(plot, false);
  if (gain && plot.y_low <= 0 && plot.y_high >= 0) plot.references.emplace_back(0, "not planted");
  return figure("<div class=\"multiples\">" + panels + "</div><div class=\"bar-line\">" + draw_color_bar(1) + "</div>",
                task == "passkey" ? "Share of contexts in which greedy decoding reproduces the pass key without "
                                    "an error. Depth 0\u2009%: the key is at the beginning."
                                  : "Share of values that are the most likely token after their key. Depth 0\u2009%: "
                                    "the pairs are at the beginning.") +
         figure(length_legend(models) + draw_responsive(plot),
                gain ? "Log-likelihood of the answer minus its log-likelihood after the same context without the key, "
                       "mean over the depths; higher is better."
                     : "Mean over the depths; higher is better.");
}

std::string models_table(const Field& models) {
  Table table = plain_table({"model"});
  table.css_class = "settings";
  for (const char* column : {"kind", "trained at", "RoPE base", "folder"}) table.columns.push_back({column, "text"});
  for (size_t m = 0; m < models.size(); ++m) {
    const Field model = models.at(m);
    table.rows.push_back(
        {length_name(models, m),
         {html_escape(model["kind"].string()), fmt::format("{:.0f}", model["training_length"].number()),
          fmt::format("{:g}", model["rope_base"].number()), html_escape(model["path"].string())}});
  }
  return to_html(table);
}

// Lists the lengths that were skipped, one line each.
std::string skipped(const Field& models, const Field& result) {
  std::string items;
  for (size_t m = 0; m < models.size(); ++m) {
    const Field rows = result["models"].at(m)["skipped"];
    for (size_t r = 0; r < rows.size(); ++r) {
      items += fmt::format("<p class=\"notes\">{}: length {:.0f} skipped: {}.</p>", length_name(models, m),
                           rows.at(r)["length"].number(), html_escape(rows.at(r)["why"].string()));
    }
  }
  return items;
}

std::string task_section(const std::string& task, const Field& models, const Field& result) {
  if (result["models"].size() != models.size()) result["models"].wrong("one entry per model");
  for (size_t m = 0; m < models.size(); ++m) {
    if (result["models"].at(m)["lengths"].size() == 0) result["models"].at(m)["lengths"].wrong("at least one length");
  }
  if (task == "passkey")
    return section(task, "Passkey retrieval", "", probe_maps(models, result, task) + skipped(models, result));
  if (task == "recall")
    return section(task, "Associative recall", "", probe_maps(models, result, task) + skipped(models, result));
  const bool lambada = task == "lambada_openai";
  const std::string lead =
      fmt::format("Intervals over {:.0f} {}s of {}.", result["models"].at(0)["units"].number(),
                  html_escape(result["models"].at(0)["unit"].string()), html_escape(result["source"].string()));
  const bool words = !lambada && result["models"].at(0)["lengths"].at(0).has("word_perplexity");
  std::string body =
      perplexity_by_length(models, result) +
      length_table(models, result, words ? "word_perplexity" : "perplexity", lambada ? "stream" : "window");
  if (!lambada) body += "<h3>By position in the window</h3>" + loss_by_position(models, result);
  body += change_table(models, result) + (lambada ? lambada_words(models, result) : "") + skipped(models, result);
  return section(task, lambada ? "LAMBADA in streams" : task == "wikitext" ? "WikiText" : "Held-out text", lead, body);
}

}  // namespace

std::string render_lengths(const Json& json, const std::string& file, const PageInfo& info) {
  const Field study(json, file);
  if (study["schema"].string() != "lazy.length/1") study["schema"].wrong("\"lazy.length/1\"");
  const Field models = study["models"];
  if (models.size() == 0) models.wrong("at least one model");
  const std::string title = "Model quality by context length";
  std::string body = page_header("Lazy Attention report", info.date, title,
                                 fmt::format("{} {} at context lengths from {:.0f} to {:.0f} tokens.", models.size(),
                                             models.size() == 1 ? "model" : "models and variants",
                                             study["config"]["lengths"].numbers().front(),
                                             study["config"]["lengths"].numbers().back())) +
                     "<main>\n" + section("models", "What was measured", "", models_table(models));
  for (const auto& [task, result] : study["results"].json().items())
    body += task_section(task, models, study["results"][task]);
  body += section("run", "What was run", "", "<p>" + code(info.command) + "</p>") + "</main>\n";
  return page(title, body);
}

}  // namespace lazy::report
