// The colors and the style sheet of the pages.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace lazy::report {

// A color ramp ordered by lightness for heat maps, and eight series colors that color-blind readers can distinguish.
// Figures use the classes q0..q63 and s0..s7, which the style sheet defines for light and dark pages.
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
// From the background color of the page (t = 0) to its strongest color (t = 1), through yellow-green, teal and blue.
Rgb ramp(double t, bool dark);
int ramp_level(double t);  // clamps; 0..kRampLevels-1
// Whether text on this level is drawn in the text color of the page (true) or in the inverted color.
bool plain_text_on(int level);
Rgb series_color(int index, bool dark);
std::string series_class(size_t index);  // CSS class of the series color; colors repeat
// Index of the marker (plot.h) of a series. Color and marker together distinguish 32 series.
constexpr int kSeriesMarks = 4;
constexpr int series_mark(size_t index) { return static_cast<int>((index + index / kSeriesColors) % kSeriesMarks); }

// CSS rules of all color classes for light or dark pages; the dark rules must be wrapped in a media query.
std::string palette_css(bool dark);

// The style sheet of all pages, including the palette.
std::string style_sheet();
// The part of the style sheet that SVG files need: series colors but not the colors of heat maps.
std::string drawing_style();

}  // namespace lazy::report
