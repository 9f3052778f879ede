#include "repro/pictures.h"

#include <functional>

#include "core/error.h"
#include "core/text.h"
#include "report/html.h"
#include "report/sections.h"

namespace lazy::repro {
namespace {

using Draw = std::function<std::string(const Json& values, int number)>;

// Returns a heading and a drawing for every model that has results of this experiment.
std::string of_models(const Results& results, const std::string& experiment, const char* section, const char* heading,
                      const Draw& draw) {
  std::string body;
  int number = 0;
  for (const auto& [model, values] : results.of_kind("." + experiment))
    body += "<h3>" + html_escape(model) + "</h3>" + draw(*values, ++number);
  return body.empty() ? "" : report::section(section, heading, "", body);
}

}  // namespace

std::vector<std::string> picture_names() {
  return {"delta",     "interventions", "gamma",      "epe",         "repetition", "mask",
          "variances", "toy-unigram",   "toy-bigram", "toy-trigger", "vectors"};
}

std::string draw_picture(const std::string& name, const Results& results, const PublishedTable& published) {
  if (name == "delta") return of_models(results, "delta", "delta", "Contribution of the query bias", draw_delta);
  if (name == "interventions")
    return of_models(results, name, "interventions", "Attention after each intervention", draw_interventions);
  if (name == "gamma")
    return of_models(results, name, "gamma",
                     "gamma at the largest coordinates of the effective positional embedding EPE_1", draw_gamma);
  if (name == "epe")
    return of_models(results, "positions", "epe", "Effective positional embeddings (EPE)", draw_positions);
  if (name == "repetition") return of_models(results, name, "maps", "Natural text and repetition", draw_repetition);
  if (name == "vectors") {
    return of_models(results, name, "tables", "The table", [&published](const Json& values, int) {
      return draw_vectors(values, published.rows.at(0).values);
    });
  }
  if (name == "mask") return draw_masks(results);
  if (name == "variances") return draw_variances(results);
  if (name == "toy-unigram") return draw_toys(results, "unigram");
  if (name == "toy-bigram") return draw_toys(results, "bigram");
  if (name == "toy-trigger") return draw_triggers(results);
  fail("repro", "unknown picture {}", name);
}

}  // namespace lazy::repro
