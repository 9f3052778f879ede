#include "report/palette.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lazy::report {

Rgb oklch(double lightness, double chroma, double hue) {
  const double a = chroma * std::cos(hue * std::numbers::pi / 180), b = chroma * std::sin(hue * std::numbers::pi / 180);
  const double l = std::pow(lightness + 0.3963377774 * a + 0.2158037573 * b, 3);
  const double m = std::pow(lightness - 0.1055613458 * a - 0.0638541728 * b, 3);
  const double s = std::pow(lightness - 0.0894841775 * a - 1.2914855480 * b, 3);
  const auto encode = [](double linear) {
    linear = std::clamp(linear, 0.0, 1.0);
    const double value = linear <= 0.0031308 ? 12.92 * linear : 1.055 * std::pow(linear, 1 / 2.4) - 0.055;
    return static_cast<uint8_t>(std::lround(255 * value));
  };
  return {encode(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
          encode(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
          encode(-0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s)};
}

std::string hex(Rgb c) { return fmt::format("#{:02x}{:02x}{:02x}", c.r, c.g, c.b); }

double luminance(Rgb color) {
  const auto decode = [](uint8_t byte) {
    const double v = byte / 255.0;
    return v <= 0.04045 ? v / 12.92 : std::pow((v + 0.055) / 1.055, 2.4);
  };
  return 0.2126 * decode(color.r) + 0.7152 * decode(color.g) + 0.0722 * decode(color.b);
}

double contrast(Rgb a, Rgb b) {
  const double x = luminance(a), y = luminance(b);
  return (std::max(x, y) + 0.05) / (std::min(x, y) + 0.05);
}

Rgb ramp(double t, bool dark) {
  t = std::clamp(t, 0.0, 1.0);
  const double chroma = 0.115 * std::sin(std::numbers::pi * (0.06 + 0.86 * t)) + 0.012;
  return dark ? oklch(0.27 + 0.66 * t, chroma, 285 - 175 * t) : oklch(0.965 - 0.665 * t, chroma, 105 + 170 * t);
}

int ramp_level(double t) {
  if (!(t > 0)) return 0;
  return std::min(kRampLevels - 1, static_cast<int>(std::min(t, 1.0) * (kRampLevels - 1) + 0.5));
}

bool plain_text_on(int level) { return level < (kRampLevels * 52) / 100; }

Rgb series_color(int index, bool dark) {
  // Okabe and Ito 2008, order and lightness adapted so that neighbours differ in both; lighter for dark pages.
  static constexpr std::array<Rgb, kSeriesColors> kLight{{{0xc4, 0x4e, 0x0a},
                                                          {0x1f, 0x66, 0xa8},
                                                          {0x0b, 0x7f, 0x64},
                                                          {0x9c, 0x4f, 0x86},
                                                          {0x8a, 0x6d, 0x00},
                                                          {0x3b, 0x8f, 0xb8},
                                                          {0x55, 0x55, 0x55},
                                                          {0x7a, 0x3b, 0x1d}}};
  static constexpr std::array<Rgb, kSeriesColors> kDark{{{0xf2, 0x8e, 0x4b},
                                                         {0x6c, 0xb2, 0xf0},
                                                         {0x46, 0xc4, 0xa2},
                                                         {0xdc, 0x98, 0xc8},
                                                         {0xd9, 0xbd, 0x4a},
                                                         {0x8f, 0xd3, 0xf0},
                                                         {0xb8, 0xb8, 0xb8},
                                                         {0xc9, 0x8a, 0x6a}}};
  return (dark ? kDark : kLight)[static_cast<size_t>(index % kSeriesColors)];
}

std::string series_class(size_t index) { return fmt::format("s{}", index % kSeriesColors); }

std::string palette_css(bool dark) {
  std::string css;
  for (int level = 0; level < kRampLevels; ++level) {
    const std::string color = hex(ramp(level / double(kRampLevels - 1), dark));
    css += fmt::format(".q{0}{{fill:{1};background-color:{1}}}", level, color);
  }
  for (int i = 0; i < kSeriesColors; ++i) css += fmt::format(".s{}{{--s:{}}}", i, hex(series_color(i, dark)));
  return css + "\n";
}

}  // namespace lazy::report
