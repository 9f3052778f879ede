// Heat maps (layer x head) and attention maps as SVG, and a browser that shows one of many maps on a page.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace lazy::report {

// Values are fractions in [0, 1]. By default rows are layers (the first on top) and columns are heads; labels can
// change this. Cells that are wide enough show their value in percent, and every cell has it as a tooltip. `high` is
// the upper end of the color bar.
struct HeatMap {
  std::string label;  // for screen readers
  std::vector<std::vector<double>> values;
  double high = 1;
  std::vector<std::string> row_labels = {}, column_labels = {};  // if empty, numbered from 0
  std::string row_name = "layer", column_name = "head";
};
std::string draw(const HeatMap& map);  // 296 units wide, for the narrow column; without a color bar
std::string draw_color_bar(double high, double width = 296);

// The weights of one head on a short text: weights[i] has the i + 1 weights of query i (causal). The color follows the
// square root of the weight so that small weights are visible; a weight of exactly zero stays blank.
struct AttentionMap {
  int layer = 0, head = 0;  // numbered from 0
  std::vector<std::string> tokens;
  std::vector<std::vector<double>> weights;
};
std::string draw_square(const AttentionMap& map);  // square cells, tokens on both axes
std::string draw_narrow(const AttentionMap& map);  // 296 units wide, tokens only on the left
std::string draw_weight_bar(double width = 296);   // color bar of attention maps
// Mean weight that each token receives from the queries that see it.
std::vector<double> received(const AttentionMap& map);
// A token as a label of at most `most` characters. Surrounding spaces are removed and control characters are replaced
// by visible symbols.
std::string token_label(const std::string& token, size_t most);

// One axis of a map browser.
struct MapAxis {
  std::string name;                 // "layer"
  std::vector<std::string> labels;  // one per position
};
MapAxis numbered(const std::string& name, size_t count, size_t first);  // labels first, first + 1, ...

// Shows one of many maps. Rows of radio buttons select the map by pointer or arrow keys, without any script. There are
// one or two axes; picture(a, b) returns HTML. `id` must be unique on the page and consist of letters, digits and -.
std::string map_browser(const std::string& id, const std::vector<MapAxis>& axes,
                        const std::function<std::string(size_t, size_t)>& picture);

// A causal map, 296 units wide, with one SVG path per color, so that a page can contain hundreds of maps. The colors
// equal the colors of draw_square. Tokens, if there are any, are on the left.
std::string draw_compact(const AttentionMap& map);

}  // namespace lazy::report
