#include "core/shared_word.h"

#include <algorithm>
#include <set>

namespace lazy {
namespace {

constexpr size_t kShortest = 4;

std::set<std::string> words(std::string_view name) {
  std::set<std::string> out;
  while (!name.empty()) {
    const size_t end = std::min(name.find_first_of("_-."), name.size());
    if (end > 0) out.emplace(name.substr(0, end));
    name.remove_prefix(std::min(end + 1, name.size()));
  }
  return out;
}

}  // namespace

std::string with_shared_word(std::string_view name, const std::vector<std::string>& candidates) {
  const auto wanted = words(name);
  std::string best;
  size_t best_others = 0;
  for (const std::string& candidate : candidates) {
    const auto found = words(candidate);
    const auto shared = std::count_if(
        found.begin(), found.end(), [&](const std::string& w) { return w.size() >= kShortest && wanted.contains(w); });
    if (shared == 0) continue;
    const size_t others = found.size() - static_cast<size_t>(shared);
    if (best.empty() || others < best_others || (others == best_others && candidate.size() < best.size())) {
      best = candidate;
      best_others = others;
    }
  }
  return best;
}

}  // namespace lazy
