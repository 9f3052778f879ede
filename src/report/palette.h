// Colours: one lightness-ordered ramp for heat maps and a few series colours that colour-blind readers tell apart.
// Pictures name classes (q0..q63, s0..s7); the style sheet gives them a value for light and for dark pages.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace lazy::report {

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
std::string series_class(size_t index);  // of its colour; colours repeat
// The curve mark (plot.h) of a series: where colours begin again, another shape goes with them, up to 32 series.
constexpr int kSeriesMarks = 4;
constexpr int series_mark(size_t index) { return static_cast<int>((index + index / kSeriesColors) % kSeriesMarks); }

// CSS rules of all classes, light; then dark, to be wrapped in a media query.
std::string palette_css(bool dark);

}  // namespace lazy::report
