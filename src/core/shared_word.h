// Names of several words: sliding_window and window_size mean the same to whoever writes one for the other.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace lazy {

// The candidate that has a word (of four letters or more, between _, - and .) in common with `name` and the fewest
// others, or "" if none has; the shortest of equals.
std::string with_shared_word(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace lazy
