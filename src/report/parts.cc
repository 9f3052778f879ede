// Pieces that several sections share.
#include <fmt/format.h>

#include "core/text.h"
#include "report/palette.h"
#include "report/plot.h"
#include "report/report.h"
#include "report/sections.h"
#include "report/style.h"

namespace lazy::report {

std::string page(const std::string& title, const std::string& body) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width, "
      "initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\"><meta "
      "http-equiv=\"Content-Security-Policy\" "
      "content=\"default-src 'none'; style-src 'unsafe-inline'\"><title>{}</title><style>\n{}</style></head><body>\n{}"
      "<footer>lazy {}</footer>\n</body></html>\n",
      html_escape(title), style_sheet(), body, LAZY_VERSION);
}

std::string page_header(const std::string& eyebrow, const std::string& date, const std::string& title,
                        const std::string& detail, const std::string& more) {
  return fmt::format("<header><p class=\"eyebrow\">{}{}</p><h1>{}</h1><p class=\"lede\">{}</p>{}</header>\n",
                     html_escape(eyebrow), date.empty() ? "" : " · " + html_escape(date), html_escape(title),
                     html_escape(detail), more);
}

std::string section(const std::string& id, const std::string& title, const std::string& lead, const std::string& body) {
  if (body.empty()) return "";
  return fmt::format("<section id=\"{}\"><h2>{}</h2>{}{}</section>\n", id, html_escape(title),
                     lead.empty() ? "" : "<p class=\"lead\">" + lead + "</p>", body);
}

std::string figure(const std::string& picture, const std::string& caption, const std::string& css_class) {
  return fmt::format("<figure{}>{}{}</figure>\n", css_class.empty() ? "" : " class=\"" + css_class + "\"", picture,
                     caption.empty() ? "" : "<figcaption>" + caption + "</figcaption>");
}

std::string series_name(size_t index, const std::string& name) {
  return fmt::format("<span class=\"run\">{}{}</span>", swatch(series_class(index), series_mark(index)),
                     html_escape(name));
}

std::string run_name(const std::vector<RunData>& runs, size_t index) { return series_name(index, runs[index].name); }

std::string legend(const std::vector<RunData>& runs) {
  std::string items;
  for (size_t i = 0; i < runs.size(); ++i) items += run_name(runs, i);
  return "<p class=\"legend\">" + items + "</p>";
}

std::string code(const std::string& command) { return "<code>" + html_escape(command) + "</code>"; }

}  // namespace lazy::report
