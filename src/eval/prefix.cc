#include "eval/prefix.h"

#include <algorithm>

namespace lazy::eval {

std::vector<PrefixGroup> group_by_prefix(const std::vector<Window>& windows) {
  std::vector<PrefixGroup> groups;
  for (size_t first = 0; first < windows.size();) {
    const std::vector<int32_t>& head = windows[first].input;
    auto shared = static_cast<int64_t>(head.size());  // of the windows so far
    size_t count = 1;
    for (; first + count < windows.size(); ++count) {
      const std::vector<int32_t>& next = windows[first + count].input;
      const auto alike =
          std::mismatch(head.begin(), head.begin() + shared, next.begin(), next.end()).first - head.begin();
      // `count` windows save count - 1 times what they share; one more must save more.
      if (alike * static_cast<int64_t>(count) <= shared * static_cast<int64_t>(count - 1)) break;
      shared = alike;
    }
    PrefixGroup group{first, count, count == 1 ? 0 : shared, 0};
    group.computed = group.shared;
    for (size_t i = first; i < first + count; ++i)
      group.computed += static_cast<int64_t>(windows[i].input.size()) - group.shared;
    groups.push_back(group);
    first += count;
  }
  return groups;
}

std::vector<PrefixGroup> group_by_whole(const std::vector<Window>& windows) {
  std::vector<PrefixGroup> groups;
  for (size_t first = 0; first < windows.size(); first += groups.back().count) {
    const std::vector<int32_t>& head = windows[first].input;
    const auto contained = [&](const Window& w) {
      return w.input.size() <= head.size() && std::equal(w.input.begin(), w.input.end(), head.begin());
    };
    size_t count = 1;
    while (first + count < windows.size() && contained(windows[first + count])) ++count;
    const auto size = static_cast<int64_t>(head.size());
    groups.push_back({first, count, count == 1 ? 0 : size, size});
  }
  return groups;
}

std::vector<PrefixGroup> each_alone(const std::vector<Window>& windows) {
  std::vector<PrefixGroup> groups;
  for (size_t i = 0; i < windows.size(); ++i)
    groups.push_back({i, 1, 0, static_cast<int64_t>(windows[i].input.size())});
  return groups;
}

}  // namespace lazy::eval
