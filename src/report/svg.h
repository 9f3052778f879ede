// A small writer of SVG: elements with classes (the page's style sheet colours them) and escaped text.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lazy::report {

class Svg {
 public:
  // `label` is what a screen reader says for the whole picture. `css_class` e.g. "wide", "narrow".
  Svg(double width, double height, std::string_view label, std::string_view css_class = "");
  void rect(double x, double y, double width, double height, std::string_view css_class, std::string_view title = "");
  void line(double x1, double y1, double x2, double y2, std::string_view css_class);
  void circle(double x, double y, double radius, std::string_view css_class, std::string_view title = "");
  // Polyline through the points; non-finite ones break it.
  void path(const std::vector<std::pair<double, double>>& points, std::string_view css_class);
  // `anchor`: "start", "middle", "end". `turn`: degrees, clockwise, around (x, y).
  void text(double x, double y, std::string_view text, std::string_view anchor = "start",
            std::string_view css_class = "", double turn = 0);
  void open_group(std::string_view css_class);
  void close_group();
  // What is drawn until pop_clip is cut at this frame; coordinates stay the picture's.
  void push_clip(double x, double y, double width, double height);
  void pop_clip();
  std::string str() const { return body_ + "</svg>"; }

 private:
  std::string body_;
};

// A drawing as a file of its own: light and dark colours, a margin, a background.
std::string svg_file(const std::string& drawing, double width, double height, const std::string& label);

// Width that a text takes, roughly, for margins: digits of wide fonts take 0.64 em; UTF-8 aware.
double text_width(std::string_view text, double font_size);

}  // namespace lazy::report
