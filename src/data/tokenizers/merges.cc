#include "data/tokenizers/merges.h"

#include <algorithm>
#include <array>
#include <queue>

namespace lazy {
namespace {

// Length in symbols up to which a linear search for the lowest rank is faster than a priority queue.
constexpr size_t kShort = 48;
constexpr int32_t kGone = -1;  // marks a symbol that has been merged into its left neighbor

}  // namespace

MergeTable::MergeTable(size_t rules) {
  int bits = 4;
  while ((size_t{1} << bits) < rules * 2) ++bits;
  rules_.assign(size_t{1} << bits, Rule{UINT64_MAX, kNone, -1});
  mask_ = rules_.size() - 1;
  shift_ = 64 - bits;
}

void MergeTable::add(int32_t left, int32_t right, int32_t merged, uint32_t rank) {
  if (find(left, right)) return;
  const uint64_t pair = static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  size_t slot = place(pair);
  while (rules_[slot].rank != kNone) slot = (slot + 1) & mask_;
  rules_[slot] = {pair, rank, merged};
}

void MergeTable::merge(std::vector<int32_t>& symbols) const {
  if (symbols.size() < 2) return;
  symbols.size() <= kShort ? merge_short(symbols) : merge_long(symbols);
}

void MergeTable::merge_short(std::vector<int32_t>& symbols) const {
  std::array<const Rule*, kShort> rules;  // rules[i] applies to symbols i and i + 1
  size_t n = symbols.size();
  for (size_t i = 0; i + 1 < n; ++i) rules[i] = find(symbols[i], symbols[i + 1]);
  while (true) {
    size_t best = n;
    uint32_t lowest = kNone;
    for (size_t i = 0; i + 1 < n; ++i) {
      if (rules[i] && rules[i]->rank < lowest) {
        lowest = rules[i]->rank;
        best = i;
      }
    }
    if (best == n) break;
    symbols[best] = rules[best]->merged;
    for (size_t i = best + 1; i + 1 < n; ++i) {
      symbols[i] = symbols[i + 1];
      rules[i] = rules[i + 1];
    }
    --n;
    if (best > 0) rules[best - 1] = find(symbols[best - 1], symbols[best]);
    if (best + 1 < n) rules[best] = find(symbols[best], symbols[best + 1]);
  }
  symbols.resize(n);
}

void MergeTable::merge_long(std::vector<int32_t>& symbols) const {
  // Uses a linked list of symbols and a priority queue of pairs. Outdated pairs are skipped when they are popped.
  struct MergeCandidate {
    uint32_t rank, left;
    int32_t first, second, merged;
    bool operator<(const MergeCandidate& other) const {  // inverted, because the queue returns its largest element
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };
  const auto n = static_cast<uint32_t>(symbols.size());
  constexpr uint32_t kEnd = UINT32_MAX;
  std::vector<uint32_t> previous(n), next(n);
  for (uint32_t i = 0; i < n; ++i) {
    previous[i] = i == 0 ? kEnd : i - 1;
    next[i] = i + 1 == n ? kEnd : i + 1;
  }
  std::vector<MergeCandidate> begin;
  const auto candidate = [&](uint32_t left, auto&& take) {
    if (left == kEnd || next[left] == kEnd) return;
    const int32_t first = symbols[left], second = symbols[next[left]];
    if (const Rule* rule = find(first, second)) take(MergeCandidate{rule->rank, left, first, second, rule->merged});
  };
  for (uint32_t i = 0; i < n; ++i) candidate(i, [&](const MergeCandidate& c) { begin.push_back(c); });
  std::priority_queue<MergeCandidate> queue({}, std::move(begin));
  while (!queue.empty()) {
    const MergeCandidate top = queue.top();
    queue.pop();
    const uint32_t left = top.left, right = next[left];
    if (symbols[left] != top.first || right == kEnd || symbols[right] != top.second) continue;  // this pair is outdated
    symbols[left] = top.merged;
    symbols[right] = kGone;
    next[left] = next[right];
    if (next[left] != kEnd) previous[next[left]] = left;
    candidate(left, [&](const MergeCandidate& c) { queue.push(c); });
    candidate(previous[left], [&](const MergeCandidate& c) { queue.push(c); });
  }
  std::erase(symbols, kGone);
}

}  // namespace lazy
