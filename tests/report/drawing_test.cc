#include <gtest/gtest.h>

#include <cmath>
#include <regex>
#include <set>
#include <utility>

#include "report/dot_plot.h"
#include "report/heat_map.h"
#include "report/html.h"
#include "report/plot.h"
#include "report/style.h"

namespace lazy::report {

TEST(Format, Numbers_HaveFixedFormats) {
  EXPECT_EQ(coordinate(12.50), "12.5");
  EXPECT_EQ(coordinate(-0.001), "0");
  EXPECT_EQ(coordinate(100), "100");
  EXPECT_EQ(fixed(-1, 2), "\u22121.00");
  EXPECT_EQ(fixed(-0.001, 2), "0.00");
  EXPECT_EQ(percent(0.0007), "0.07");
  EXPECT_EQ(percent(0.073), "7.3");
  EXPECT_EQ(percent(0.00996), "1.0");
  EXPECT_EQ(percent(1), "100");
  EXPECT_EQ(percent(0.9996), "100");
  EXPECT_EQ(percent(0), "0");
  EXPECT_EQ(grouped(2097152), "2\u2009097\u2009152");
  EXPECT_EQ(grouped(512), "512");
}

TEST(Scale, Ticks_AreRoundAndInsideTheRange) {
  const auto values = [](const std::vector<Tick>& ticks) {
    std::vector<std::string> labels;
    for (const Tick& tick : ticks) labels.push_back(tick.label);
    return labels;
  };
  EXPECT_EQ(values(linear_ticks(3.41, 5.62, 5)), (std::vector<std::string>{"3.5", "4.0", "4.5", "5.0", "5.5"}));
  EXPECT_EQ(values(linear_ticks(-1.2, 0.3, 4)), (std::vector<std::string>{"\u22121.0", "\u22120.5", "0.0"}));
  EXPECT_EQ(values(count_ticks(0, 2e6, 4)), (std::vector<std::string>{"0", "500k", "1.00M", "1.50M", "2.00M"}));
  EXPECT_EQ(values(distance_ticks(255, 10)),
            (std::vector<std::string>{"0", "1", "2", "4", "8", "16", "32", "64", "128"}));
  EXPECT_EQ(values(distance_ticks(511, 6)), (std::vector<std::string>{"0", "1", "4", "16", "64", "256"}));
  for (double low : {-3.0, 0.0, 0.001, 17.0}) {
    for (double span : {1e-6, 0.3, 1.0, 12345.0}) {
      for (int most : {2, 5, 9}) {
        const auto ticks = linear_ticks(low, low + span, most);
        EXPECT_LE(static_cast<int>(ticks.size()), most + 1);
        for (const Tick& tick : ticks) {
          EXPECT_GE(tick.value, low - 1e-9 * span);
          EXPECT_LE(tick.value, low + span * (1 + 1e-9));
        }
      }
    }
  }
  EXPECT_EQ(linear_ticks(2, 2, 5).size(), 1u);
}

TEST(Scale, LogAxis_StartsAtZero) {
  const Scale scale{Scale::Kind::log1p, 0, 255, 10, 110};
  EXPECT_DOUBLE_EQ(scale(0), 10);
  EXPECT_DOUBLE_EQ(scale(255), 110);
  EXPECT_NEAR(scale(15), 60, 1e-9);  // because ln 16 is half of ln 256
  EXPECT_DOUBLE_EQ(round_up(0.31), 0.4);
  EXPECT_DOUBLE_EQ(round_up(0.6), 0.6);
  EXPECT_DOUBLE_EQ(round_up(0.0), 1);
}

// The drawing is clipped at its edges, so a label at the end of the axis must move inwards.
TEST(Plots, XAxisLabels_StayInsideTheDrawing) {
  const double width = 720;
  DotPlot dots{.rows = {{.name = "softmax", .values = {{0, -0.0025}, {1, 0.0119}}}}};
  Plot curves{.x_low = 0, .x_high = 2e6, .x_ticks = Plot::XTicks::counts};
  const std::regex tick(R"re(class="tick" x="([-0-9.]+)"[^>]*text-anchor="middle">([^<]*)<)re");
  for (const auto& [drawing, last] : {std::pair{draw(dots, width), "0.0125"}, {draw(curves, width, 300), "2.00M"}}) {
    std::string label;
    for (std::sregex_iterator it(drawing.begin(), drawing.end(), tick), end; it != end; ++it) {
      label = (*it)[2];
      const double x = std::stod((*it)[1]), half = text_width(label, 14) / 2;
      EXPECT_GE(x, half) << label;
      EXPECT_LE(x, width - half + 0.01) << label;
    }
    EXPECT_EQ(label, last);
  }
}

// The ramp is ordered by lightness alone, so it works for color-blind readers and for grayscale printers.
TEST(Palette, Ramp_IsOrderedByLightnessWithReadableText) {
  for (bool dark : {false, true}) {
    const Rgb ink = dark ? Rgb{0xf1, 0xee, 0xe6} : Rgb{0x22, 0x27, 0x2b},
              inverse = dark ? Rgb{0x15, 0x18, 0x1b} : Rgb{255, 255, 255};
    for (int i = 0; i < kRampLevels; ++i) {
      const Rgb color = ramp(i / double(kRampLevels - 1), dark);
      if (i > 0) {
        const double before = luminance(ramp((i - 1) / double(kRampLevels - 1), dark));
        EXPECT_GT((luminance(color) - before) * (dark ? 1 : -1), 0) << i << (dark ? " dark" : " light");
      }
      // WCAG requires a contrast of 3:1 for large text and graphics.
      EXPECT_GE(contrast(color, plain_text_on(i) ? ink : inverse), 3.0)
          << i << (dark ? " dark" : " light") << hex(color);
    }
  }
  const Rgb pages[2] = {{0xfd, 0xfc, 0xf9}, {0x15, 0x18, 0x1b}};
  for (int i = 0; i < kSeriesColors; ++i) {
    EXPECT_GE(contrast(series_color(i, false), pages[0]), 3.0) << i;
    EXPECT_GE(contrast(series_color(i, true), pages[1]), 3.0) << i;
  }
  std::set<std::pair<int, int>> seen;
  for (int i = 0; i < kSeriesColors * kSeriesMarks; ++i) {
    EXPECT_TRUE(seen.emplace(i % kSeriesColors, series_mark(static_cast<size_t>(i))).second)
        << i << " looks like an earlier series";
  }
  EXPECT_EQ(ramp_level(-1), 0);
  EXPECT_EQ(ramp_level(NAN), 0);
  EXPECT_EQ(ramp_level(2), kRampLevels - 1);
}

TEST(AttentionMap, Received_IsTheMeanOverQueriesThatSeeTheToken) {
  const AttentionMap map{0, 0, {"a", "b", "c"}, {{1}, {0.5, 0.25}, {0.3, 0.2, 0.1}}};
  const auto mean = received(map);
  EXPECT_DOUBLE_EQ(mean[0], (1 + 0.5 + 0.3) / 3);
  EXPECT_DOUBLE_EQ(mean[1], (0.25 + 0.2) / 2);
  EXPECT_DOUBLE_EQ(mean[2], 0.1);
}

TEST(AttentionMap, TokenLabel_ShortensAndEscapesTokens) {
  EXPECT_EQ(token_label(" word", 8), "word");
  EXPECT_EQ(token_label("incomprehensible", 8), "incompre…");
  EXPECT_EQ(token_label("\n\n", 8), "⏎");
  EXPECT_EQ(token_label("  ", 8), "␣");
  EXPECT_EQ(token_label("größeren", 3), "grö…");
  EXPECT_EQ(token_label(std::string("a\x01z"), 8), "a?z");
}

}  // namespace lazy::report
