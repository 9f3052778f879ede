// The map browser shows the selected part without scripts, and compact maps color the expected cells.
#include "report/heat_map.h"

#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "report/report.h"
#include "report/style.h"

namespace lazy::report {
namespace {

size_t count(const std::string& text, const std::string& words) {
  size_t found = 0;
  for (size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++found;
  return found;
}

TEST(MapBrowser, EveryPosition_HasInputLabelAndPart) {
  const std::string html = map_browser("m", {numbered("layer", 3, 0), {"head", {"2", "5"}}}, [](size_t a, size_t b) {
    return "[" + std::to_string(a) + std::to_string(b) + "]";
  });
  EXPECT_EQ(count(html, "<input type=\"radio\""), 5u);
  EXPECT_EQ(count(html, " checked"), 2u) << "the first input of each axis is selected";
  EXPECT_EQ(count(html, "<script"), 0u);
  std::set<std::string> ids;
  const std::regex id("<input[^>]* id=\"([^\"]+)\"");
  for (auto it = std::sregex_iterator(html.begin(), html.end(), id); it != std::sregex_iterator(); ++it) {
    const std::string name = (*it)[1];
    EXPECT_TRUE(ids.insert(name).second);
    EXPECT_EQ(count(html, "<label for=\"" + name + "\""), 1u);
    EXPECT_EQ(count(html, "#" + name + ":checked~.stage"), 1u);
  }
  for (const char* part : {"[00]", "[01]", "[10]", "[11]", "[20]", "[21]"}) EXPECT_EQ(count(html, part), 1u);
  EXPECT_EQ(count(html, "class=\"part part0-"), 3u);
  EXPECT_EQ(count(html, "class=\"part part1-"), 6u);
  EXPECT_LT(html.find("<input"), html.find("class=\"stage\"")) << "the CSS selector ~ only matches later siblings";
}

TEST(MapBrowser, OneAxis_NeedsNoSecondSelector) {
  const std::string html =
      map_browser("x", {numbered("step", 2, 1)}, [](size_t a, size_t) { return std::to_string(a) + "!"; });
  EXPECT_EQ(count(html, "0!") + count(html, "1!"), 2u);
  EXPECT_EQ(count(html, "part1-"), 0u);
}

TEST(CompactMap, NeighborsOfEqualColor_AreMerged) {
  AttentionMap map;
  map.weights = {{1, 9, 9}, {0, 1, 9}, {0.25, 0.25, 0.5}};  // values above the diagonal are not drawn
  const std::string svg = draw_compact(map);
  const std::string full = "class=\"q" + std::to_string(ramp_level(1)) + "\"",
                    quarter = "class=\"q" + std::to_string(ramp_level(0.5)) + "\"";
  ASSERT_EQ(count(svg, full), 1u);
  ASSERT_EQ(count(svg, quarter), 1u);
  const auto path_of = [&](const std::string& colour) {
    const size_t at = svg.find("d=\"", svg.find(colour));
    return svg.substr(at, svg.find('"', at + 3) - at);
  };
  EXPECT_EQ(count(path_of(full), "M"), 2u) << "two separate cells of full weight";
  EXPECT_EQ(count(path_of(quarter), "M"), 1u) << "two neighboring cells form one rectangle";
  EXPECT_EQ(count(svg, "<path"), 3u);
}

TEST(CompactMap, ManyMaps_AreShownWithSelector) {
  RunData run;
  run.name = "run";
  run.sinks.emplace();
  for (int layer = 0; layer < 3; ++layer) {
    for (int head = 0; head < 4; ++head) run.sinks->maps.push_back({layer, head, {"a", "<b>"}, {{1}, {0.5, 0.5}}});
  }
  run.sinks->further.sink_k = {0.5, 0.25};
  run.sinks->further.entropy = {{1, 2}};
  run.sinks->further.cosine = {0.1, 0.2};
  run.sinks->further.effective_rank = {3, 2};
  run.sinks->further.massive = {{2, 9000, 0.5, 0, 447}};
  run.sinks->density = run.sinks->sink_ratio = run.sinks->released_mass = run.sinks->alive_fraction =
      run.sinks->sink_1 = {{0.5, 0.5}};
  const std::string html = render({run}, {"lazy sinks", "2026-01-01"});
  EXPECT_EQ(count(html, "<input type=\"radio\""), 7u);
  EXPECT_NE(html.find("&lt;b&gt;"), std::string::npos) << "tokens are escaped";
  EXPECT_NE(html.find("447"), std::string::npos);
  EXPECT_NE(html.find("Sink_k"), std::string::npos);
}

}  // namespace
}  // namespace lazy::report
