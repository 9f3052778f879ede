// Pieces that several sections share.
#include <fmt/format.h>

#include "core/text.h"
#include "report/palette.h"
#include "report/plot.h"
#include "report/sections.h"

namespace lazy::report {

std::string section(const std::string& id, const std::string& title, const std::string& lead, const std::string& body) {
  if (body.empty()) return "";
  return fmt::format("<section id=\"{}\"><h2>{}</h2>{}{}</section>\n", id, html_escape(title),
                     lead.empty() ? "" : "<p class=\"lead\">" + lead + "</p>", body);
}

std::string figure(const std::string& picture, const std::string& caption, const std::string& css_class) {
  return fmt::format("<figure{}>{}{}</figure>\n", css_class.empty() ? "" : " class=\"" + css_class + "\"", picture,
                     caption.empty() ? "" : "<figcaption>" + caption + "</figcaption>");
}

std::string run_name(const std::vector<RunData>& runs, size_t index) {
  return fmt::format("<span class=\"run\">{}{}</span>",
                     swatch(fmt::format("s{}", index % kSeriesColors), static_cast<int>(index % 4)), html_escape(runs[index].name));
}

std::string legend(const std::vector<RunData>& runs) {
  std::string items;
  for (size_t i = 0; i < runs.size(); ++i) items += run_name(runs, i);
  return "<p class=\"legend\">" + items + "</p>";
}

std::string code(const std::string& command) { return "<code>" + html_escape(command) + "</code>"; }

}  // namespace lazy::report
