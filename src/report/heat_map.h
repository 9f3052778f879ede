// Heat maps (layer x head) and attention maps as SVG, and a browser for many of them on one page.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace lazy::report {

// Values are shares in [0, 1], rows are layers (first on top), columns are heads, or what the labels say. Cells wide
// enough carry their value in percent; every cell has it as a tooltip. `high` is the colour bar's upper end.
struct HeatMap {
  std::string label;  // for screen readers
  std::vector<std::vector<double>> values;
  double high = 1;
  std::vector<std::string> row_labels = {}, column_labels = {};  // empty: counted from 0
  std::string row_name = "layer", column_name = "head";
};
std::string draw(const HeatMap& map);  // 296 wide, for the narrow column; no colour bar
std::string draw_color_bar(double high, double width = 296);

// Weights of one head over a short text: weights[i] has the i + 1 weights of query i (causal). Colour follows the
// square root of the weight, so that small weights show; a weight of exactly zero stays blank.
struct AttentionMap {
  int layer = 0, head = 0;  // counted from 0
  std::vector<std::string> tokens;
  std::vector<std::vector<double>> weights;
};
std::string draw_square(const AttentionMap& map);  // square cells, tokens on both axes
std::string draw_narrow(const AttentionMap& map);  // 296 wide, tokens on the left only
std::string draw_weight_bar(double width = 296);   // its colour bar
// Mean weight that each token receives from the queries that see it.
std::vector<double> received(const AttentionMap& map);
// A token as a label: spaces around it dropped, control characters shown by their symbols, at most `most` characters.
std::string token_label(const std::string& token, size_t most);

// One axis of a map browser.
struct MapAxis {
  std::string name;                 // "layer"
  std::vector<std::string> labels;  // one per position
};
MapAxis numbered(const std::string& name, size_t count, size_t first);  // labels first, first + 1, ...

// Shows one of many maps: rows of radio buttons select it, by pointer or arrow keys, without any script. One or two
// axes; picture(a, b) is HTML. `id` is unique on the page and consists of letters, digits and -.
std::string map_browser(const std::string& id, const std::vector<MapAxis>& axes,
                        const std::function<std::string(size_t, size_t)>& picture);

// A causal map as one SVG path per colour, so that a page can hold hundreds; 296 wide. Colours as in draw_square.
// Tokens, if any, are on the left.
std::string draw_compact(const AttentionMap& map);

}  // namespace lazy::report
