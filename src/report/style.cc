#include "report/style.h"

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
  // Palette of Okabe and Ito (2008). Order and lightness are adapted so that neighboring colors differ in both; the
  // colors for dark pages are lighter.
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

namespace {

std::string series_css(bool dark) {
  std::string css;
  for (int i = 0; i < kSeriesColors; ++i) css += fmt::format(".s{}{{--s:{}}}", i, hex(series_color(i, dark)));
  return css + "\n";
}

}  // namespace

std::string palette_css(bool dark) {
  std::string css;
  for (int level = 0; level < kRampLevels; ++level) {
    const std::string color = hex(ramp(level / double(kRampLevels - 1), dark));
    css += fmt::format(".q{0}{{fill:{1};background-color:{1}}}", level, color);
  }
  return css + series_css(dark);
}

namespace {

// Colors by role. The classes of the palette follow below, once for light pages and paper and once for dark screens.
constexpr const char* kLight = R"(
:root{--page:#fdfcf9;--ink:#22272b;--soft:#5c656c;--rule:#dedbd2;--card:#f6f4ee;--axis:#8b9297;--grid:#e9e6dd;
--low-ink:#22272b;--high-ink:#ffffff;--visible:#f3f1ea;--mark:#fff3d6}
)";
constexpr const char* kDark = R"(
:root{--page:#15181b;--ink:#e6e3dc;--soft:#a4abb0;--rule:#343a3f;--card:#1d2125;--axis:#7c858b;--grid:#2a2f33;
--low-ink:#f1eee6;--high-ink:#15181b;--visible:#1b1f22;--mark:#38301a}
)";

constexpr const char* kDrawingRules = R"(svg text{font-size:14px;fill:var(--ink);font-variant-numeric:tabular-nums}
svg .tick,svg .axis-name{fill:var(--soft)}
svg .token{font-size:14px}
.axis{stroke:var(--axis);stroke-width:1;fill:none}.grid{stroke:var(--grid);stroke-width:1;fill:none}
.reference{stroke:var(--axis);stroke-width:1;stroke-dasharray:3 4;fill:none}.reference-name{fill:var(--soft)}
.curve .stroke,.swatch .stroke{stroke:var(--s);stroke-width:2.2;fill:none;stroke-linejoin:round;stroke-linecap:round}
.curve .mark,.swatch .mark{fill:var(--page);stroke:var(--s);stroke-width:1.8}
.faint .stroke{stroke-width:1.2;opacity:.5}
.thin .stroke{stroke-width:1.2;opacity:.55}
.dots .mark{fill:var(--s);fill-opacity:.5;stroke:none}
)";

constexpr const char* kRules = R"(
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;text-size-adjust:100%}
body{margin:0 auto;max-width:1088px;padding:40px 24px 64px;background:var(--page);color:var(--ink);
font:17px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,"Liberation Sans",sans-serif;)"
                               R"(overflow-wrap:break-word}
h1,h2{font-family:Charter,"Iowan Old Style","Palatino Linotype",Palatino,Georgia,"Liberation Serif",serif;)"
                               R"(font-weight:600;line-height:1.18;text-wrap:balance}
h1{font-size:clamp(28px,4.6vw,44px);margin:6px 0 14px;letter-spacing:-.01em;max-width:22em}
h2{font-size:28px;margin:0 0 10px}
h3{font-size:18px;margin:24px 0 4px;line-height:1.3}
h4{font-size:16px;font-weight:600;margin:14px 0 6px;line-height:1.3}
h4 small{font-weight:400;font-size:15px;color:var(--soft);margin-left:6px}
p{margin:0 0 12px}
header{border-bottom:1px solid var(--rule);padding-bottom:18px;margin-bottom:26px}
.eyebrow{color:var(--soft);font-size:15px;letter-spacing:.02em;margin:0}
.lede{font-size:19px;line-height:1.5;max-width:46em;margin:0}
.lead{max-width:46em;color:var(--soft)}
section{margin-top:56px}
figure{margin:14px 0 30px;break-inside:avoid}
figure.splittable{break-inside:auto}
figcaption,.legend,.notes{font-size:15px;line-height:1.5;color:var(--soft)}
figcaption{margin-top:10px;max-width:54em}
code,pre{font:14px/1.5 ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono","Liberation Mono",monospace}
code{overflow-wrap:anywhere;background:var(--card);padding:1px 4px;border-radius:3px;color:var(--ink)}
pre{background:var(--card);padding:14px;border-radius:6px;margin:8px 0}
details{margin:10px 0}summary{cursor:pointer;font-size:16px;padding:4px 0}
footer{margin-top:64px;border-top:1px solid var(--rule);padding-top:10px;color:var(--soft);font-size:15px}
.scroll{overflow-x:auto;max-width:100%}

/* A run's name carries its colour and its mark everywhere. */
.run{overflow-wrap:anywhere}.swatch{width:26px;height:12px;margin-right:6px;vertical-align:0}
.legend{display:flex;flex-wrap:wrap;gap:4px 22px;align-items:baseline;margin:0 0 8px;color:var(--ink)}

.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,228px),1fr));gap:16px}
.tile{background:var(--card);border-radius:10px;padding:14px 16px 16px;break-inside:avoid}
.tile h3{margin:0;font-size:17px}.tile p{margin:0 0 10px;color:var(--soft);font-size:14px;line-height:1.35}
.bar{display:grid;grid-template-columns:1fr auto;align-items:baseline;margin-top:8px;column-gap:8px}
.bar-name{font-size:15px;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.bar b{font-size:20px;font-variant-numeric:tabular-nums;font-weight:600}
.bar i{grid-column:1/-1;height:6px;border-radius:3px;background:var(--s);min-width:2px;margin-top:2px}

table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:16px;line-height:1.35}
th,td{padding:7px 10px;text-align:right;border-bottom:1px solid var(--rule);vertical-align:baseline}
th:first-child{text-align:left;padding-left:0}
thead th{border-bottom:1.5px solid var(--axis);font-weight:600}
tbody th{font-weight:400}
sub,sup{line-height:0}
th small,td small{display:block;color:var(--soft);font-size:14px}
.results{width:100%;max-width:760px}
.results tbody th{min-width:9em}
.wide{max-width:none;font-size:14px}.wide th,.wide td{padding:5px})"
                               R"(.wide th small,.wide td small{font-size:12px;font-weight:400}
.wide tbody th,.wide td{min-width:0;white-space:nowrap}.wide thead th{vertical-align:bottom}
td.best{font-weight:700}
.statements th,.statements td{text-align:left;min-width:8em}.statements tbody th{min-width:12em}
.settings{font-size:15px}.settings td,.settings th.text{text-align:left})"
                               R"(.settings td{overflow-wrap:anywhere;min-width:7em}
.settings tbody th{color:var(--soft);white-space:nowrap}.differs{background:var(--mark)}

svg{display:block;width:100%;height:auto;overflow:visible}
svg.clip{overflow:hidden}
)";
constexpr const char* kMoreRules = R"(.visible{fill:var(--visible)}
.on-low{fill:var(--low-ink);color:var(--low-ink)}.on-high{fill:var(--high-ink);color:var(--high-ink)}
svg text.on-low{fill:var(--low-ink)}svg text.on-high{fill:var(--high-ink)}
svg.swatch{display:inline-block}

/* The drawing that fits the page is shown, so that its text is never shrunk below 14 px. */
.at-wide,.at-narrow,.at-middle{display:none}
@media (min-width:1080px){.at-wide{display:block}}
@media (min-width:690px) and (max-width:1079.98px){.at-middle{display:block}}
@media (max-width:689.98px){.at-narrow{display:block}}
.at-square{display:none}
@media (min-width:690px){.at-square{display:block}.at-column{display:none}svg.at-square{width:auto;max-width:none}}
svg.heat,svg.small,svg.bar,svg.at-column{max-width:344px}

.splits{display:grid;grid-template-columns:minmax(0,auto) minmax(0,3fr);gap:10px 16px;align-items:center}
.split{display:flex;height:34px;border-radius:5px;overflow:hidden;font-size:15px;line-height:34px}
.split span{text-align:center;overflow:hidden;white-space:nowrap}
.key{display:inline-block;width:16px;height:12px;border-radius:2px;margin-right:7px}
.measures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,296px),1fr));gap:8px 36px}
.measure h3{margin-bottom:0}.measure p{font-size:15px;color:var(--soft);margin:0}
.measure .bar{display:block;margin-top:12px}
.multiples{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,296px),1fr));gap:8px 36px}
.multiples>.panel{max-width:344px}
.stack .panel{max-width:760px}
.maps{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:16px 40px}
.maps.single{grid-template-columns:minmax(0,1fr)}
.maps .panel,.multiples .panel,.measure,.stack .panel{break-inside:avoid;min-width:0}
.shaded{font-size:16px;line-height:1.7;margin:10px 0 0;max-width:30em}
.shaded span{white-space:pre-wrap;padding:2px 0;-webkit-box-decoration-break:clone;box-decoration-break:clone}
.bar-line{margin-top:16px}
.samples{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr));gap:8px 40px}
.samples .panel{min-width:0}
blockquote{margin:10px 0 16px;padding:2px 0 2px 16px;border-left:3px solid var(--rule);white-space:pre-wrap;
font-family:Charter,"Iowan Old Style",Georgia,"Liberation Serif",serif;font-size:17px;line-height:1.5;)"
                                   R"(break-inside:avoid}
.prompt{font-weight:700}
@media (max-width:689.98px){
body{padding:24px 12px 48px}section{margin-top:44px}.lede{font-size:18px}
.splits{grid-template-columns:minmax(0,1fr);gap:2px}.split{margin-bottom:8px}
.tiles{grid-template-columns:repeat(auto-fit,minmax(138px,1fr));gap:10px}.tile{padding:10px 12px 14px}
th,td{padding:7px 6px}.results tbody th{min-width:0}.swatch{margin-right:4px}
}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}
@media print{
@page{margin:14mm}
body{max-width:none;padding:0;font-size:11pt;background:#fff}
section{margin-top:24px}h2,h3,h4,.lead{break-after:avoid}.lead{break-inside:avoid}
figure{margin:10px 0 18px}.measures,.multiples{grid-template-columns:repeat(3,minmax(0,1fr));gap:8px 18px}
.maps{grid-template-columns:repeat(2,minmax(0,1fr));gap:10px 24px}.maps.single{grid-template-columns:minmax(0,1fr)}
figure:has(.multiples),figure:has(.stack){break-inside:auto}
.lede{font-size:13pt}figcaption,.legend,.notes,.tile p{font-size:9.5pt}table{font-size:10.5pt}th,td{padding:4px 8px}
.shaded,blockquote{font-size:11pt}
.scroll{overflow:visible}svg.at-square{max-width:100%;height:auto}details:not([open]){display:none}
.tile{border:1px solid var(--rule)}
}
)";

}  // namespace

std::string style_sheet() {
  const std::string parts[2] = {
      ".part-sink{background:" + hex(ramp(0.97, false)) + ";color:#fff}.part-density{background:" +
          hex(ramp(0.55, false)) + ";color:#fff}.part-released{background:" + hex(ramp(0.1, false)) + ";color:#22272b}",
      ".part-sink{background:" + hex(ramp(0.97, true)) + ";color:#15181b}.part-density{background:" +
          hex(ramp(0.5, true)) + ";color:#fff}.part-released{background:" + hex(ramp(0.12, true)) + ";color:#f1eee6}"};
  return std::string(kLight) + palette_css(false) + parts[0] + "\n@media screen and (prefers-color-scheme:dark){" +
         kDark + palette_css(true) + parts[1] + "}\n" + kRules + kDrawingRules + kMoreRules;
}

std::string drawing_style() {
  return kLight + series_css(false) + "@media screen and (prefers-color-scheme:dark){" + kDark + series_css(true) +
         "}\n" + kDrawingRules;
}

}  // namespace lazy::report
