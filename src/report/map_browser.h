// Many attention maps on one page: lines of radio buttons, which a finger or the arrow keys slide along, choose the one
// that is shown. It needs neither script nor network.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "report/heat_map.h"

namespace lazy::report {

struct MapAxis {
  std::string name;                 // "layer"
  std::vector<std::string> labels;  // of its places
};
MapAxis numbered(const std::string& name, size_t places);  // labels 1, 2, ...

// One or two axes; picture(a) or picture(a, b) is HTML. `id` is unique on the page, of letters, digits and -.
std::string map_browser(const std::string& id, const std::vector<MapAxis>& axes,
                        const std::function<std::string(size_t, size_t)>& picture);

// A causal map with a cell a weight and one element a colour, so that hundreds fit into a page; 296 wide. Colour
// follows the square root of the weight, as in every map. Tokens, if there are any, stand on the left.
std::string draw_compact(const AttentionMap& map);

}  // namespace lazy::report
