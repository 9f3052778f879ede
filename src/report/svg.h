// A small SVG writer: elements with CSS classes (the style sheet of the page defines the colors) and escaped text.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lazy::report {

class Svg {
 public:
  // `label` describes the drawing for screen readers. `css_class` is for example "wide" or "narrow".
  Svg(double width, double height, std::string_view label, std::string_view css_class = "");
  void rect(double x, double y, double width, double height, std::string_view css_class, std::string_view title = "");
  void line(double x1, double y1, double x2, double y2, std::string_view css_class);
  void circle(double x, double y, double radius, std::string_view css_class, std::string_view title = "");
  // A polyline through the points; a non-finite point interrupts the line.
  void path(const std::vector<std::pair<double, double>>& points, std::string_view css_class);
  // `anchor`: "start", "middle" or "end". `turn`: clockwise rotation around (x, y) in degrees.
  void text(double x, double y, std::string_view text, std::string_view anchor = "start",
            std::string_view css_class = "", double turn = 0);
  void open_group(std::string_view css_class);
  void close_group();
  // Everything drawn until pop_clip is clipped to this frame; the coordinate system does not change.
  void push_clip(double x, double y, double width, double height);
  void pop_clip();
  std::string str() const { return body_ + "</svg>"; }

 private:
  std::string body_;
};

// A drawing as a standalone SVG file with light and dark colors, a margin and a background.
std::string svg_file(const std::string& drawing, double width, double height, const std::string& label);

// Approximate width of a text, used for margins: 0.64 em per character, the width of digits in wide fonts. Counts UTF-8
// characters.
double text_width(std::string_view text, double font_size);

}  // namespace lazy::report
