#include "report/svg.h"

#include <fmt/format.h>

#include <cmath>

#include "core/text.h"
#include "report/html.h"
#include "report/style.h"

namespace lazy::report {
namespace {

constexpr auto c = coordinate;

std::string css(std::string_view name) { return name.empty() ? "" : fmt::format(" class=\"{}\"", name); }

}  // namespace

Svg::Svg(double width, double height, std::string_view label, std::string_view css_class) {
  body_ = fmt::format("<svg{} viewBox=\"0 0 {} {}\" width=\"{}\" height=\"{}\" role=\"img\" aria-label=\"{}\">",
                      css(css_class), c(width), c(height), c(width), c(height), html_escape(label));
}

void Svg::rect(double x, double y, double width, double height, std::string_view css_class, std::string_view title) {
  body_ += fmt::format("<rect{} x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"", css(css_class), c(x), c(y), c(width),
                       c(height));
  body_ += title.empty() ? "/>" : fmt::format("><title>{}</title></rect>", html_escape(title));
}

void Svg::line(double x1, double y1, double x2, double y2, std::string_view css_class) {
  body_ += fmt::format("<path{} d=\"M{} {}L{} {}\"/>", css(css_class), c(x1), c(y1), c(x2), c(y2));
}

void Svg::circle(double x, double y, double radius, std::string_view css_class, std::string_view title) {
  body_ += fmt::format("<circle{} cx=\"{}\" cy=\"{}\" r=\"{}\"", css(css_class), c(x), c(y), c(radius));
  body_ += title.empty() ? "/>" : fmt::format("><title>{}</title></circle>", html_escape(title));
}

void Svg::path(const std::vector<std::pair<double, double>>& points, std::string_view css_class) {
  std::string d;
  bool pen_down = false;
  for (const auto& [x, y] : points) {
    const bool drawable = std::isfinite(x) && std::isfinite(y);
    if (drawable) d += fmt::format("{}{} {}", pen_down ? 'L' : 'M', c(x), c(y));
    pen_down = drawable;
  }
  if (!d.empty()) body_ += fmt::format("<path{} d=\"{}\"/>", css(css_class), d);
}

void Svg::text(double x, double y, std::string_view text, std::string_view anchor, std::string_view css_class,
               double turn) {
  body_ += fmt::format("<text{} x=\"{}\" y=\"{}\"", css(css_class), c(x), c(y));
  if (anchor != "start") body_ += fmt::format(" text-anchor=\"{}\"", anchor);
  if (turn != 0) body_ += fmt::format(" transform=\"rotate({} {} {})\"", c(turn), c(x), c(y));
  body_ += fmt::format(">{}</text>", html_escape(text));
}

void Svg::open_group(std::string_view css_class) { body_ += fmt::format("<g{}>", css(css_class)); }
void Svg::close_group() { body_ += "</g>"; }

void Svg::push_clip(double x, double y, double width, double height) {
  body_ +=
      fmt::format("<svg class=\"clip\" x=\"{0}\" y=\"{1}\" width=\"{2}\" height=\"{3}\" viewBox=\"{0} {1} {2} {3}\">",
                  c(x), c(y), c(width), c(height));
}
void Svg::pop_clip() { body_ += "</svg>"; }

std::string svg_file(const std::string& drawing, double width, double height, const std::string& label) {
  constexpr double kMargin = 16;
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"{0} {0} {1} {2}\" width=\"{1}\" height=\"{2}\" role=\"img\" "
      "aria-label=\"{3}\" font-family=\"system-ui,-apple-system,Segoe "
      "UI,Roboto,Arial,sans-serif\">\n<style>{4}</style>\n"
      "<rect x=\"{0}\" y=\"{0}\" width=\"100%\" height=\"100%\" fill=\"var(--page)\"/>\n{5}\n</svg>\n",
      -kMargin, coordinate(width + 2 * kMargin), coordinate(height + 2 * kMargin), html_escape(label), drawing_style(),
      drawing);
}

double text_width(std::string_view text, double font_size) {
  return 0.64 * font_size * static_cast<double>(count_characters(text));
}

}  // namespace lazy::report
