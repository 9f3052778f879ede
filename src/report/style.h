// Colours and the style sheet of the pages.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace lazy::report {

// One ramp ordered by lightness for heat maps, and eight series colours that colour-blind readers can distinguish.
// Pictures use classes (q0..q63, s0..s7); the style sheet defines them for light and for dark pages.
struct Rgb {
  uint8_t r, g, b;
};
// Oklch (Ottosson 2020): lightness 0..1, chroma, hue in degrees; clipped to sRGB.
Rgb oklch(double lightness, double chroma, double hue);
std::string hex(Rgb color);
// Relative luminance and contrast ratio of WCAG 2.1.
double luminance(Rgb color);
double contrast(Rgb a, Rgb b);

constexpr int kRampLevels = 64;
constexpr int kSeriesColors = 8;
// From the page's own tone (0) to its strongest tone (1), through yellow-green, teal and blue.
Rgb ramp(double t, bool dark);
int ramp_level(double t);  // clamps; 0..kRampLevels-1
// Whether text on this level is drawn in the page's text colour (true) or inverted.
bool plain_text_on(int level);
Rgb series_color(int index, bool dark);
std::string series_class(size_t index);  // class of the series colour; colours repeat
// Marker (plot.h) of a series. Colour and marker together distinguish 32 series.
constexpr int kSeriesMarks = 4;
constexpr int series_mark(size_t index) { return static_cast<int>((index + index / kSeriesColors) % kSeriesMarks); }

// CSS rules of all classes, light; then dark, to be wrapped in a media query.
std::string palette_css(bool dark);

// The style sheet of all pages, palette included.
std::string style_sheet();
// The part of it that drawings need, with the colours of series but not of heat maps: for SVG files.
std::string drawing_style();

}  // namespace lazy::report
