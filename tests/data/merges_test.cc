#include "data/tokenizers/merges.h"

#include "support.h"

namespace lazy {
using namespace testing_support;

namespace {

// Reference implementation: find the pair with the lowest rank (if several pairs have this rank, the leftmost one),
// merge it, and repeat.
std::vector<int32_t> by_definition(const MergeTable& table, std::vector<int32_t> symbols) {
  while (true) {
    const MergeTable::Rule* best = nullptr;
    size_t where = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto* rule = table.find(symbols[i], symbols[i + 1]);
      if (rule && (!best || rule->rank < best->rank)) {
        best = rule;
        where = i;
      }
    }
    if (!best) return symbols;
    symbols[where] = best->merged;
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(where) + 1);
  }
}

}  // namespace

TEST(Merges, Merge_MatchesReferenceImplementation) {
  Random random(5);
  for (int round = 0; round < 40; ++round) {
    MergeTable table(60);
    int32_t symbols_known = 4;
    for (uint32_t rule = 0; rule < 40; ++rule) {
      const auto left = static_cast<int32_t>(random.below(symbols_known));
      const auto right = static_cast<int32_t>(random.below(symbols_known));
      const uint32_t rank = round % 2 ? rule : rule / 4;  // in even rounds, groups of four rules have the same rank
      if (!table.find(left, right)) table.add(left, right, symbols_known++, rank);
    }
    for (const size_t length : {0, 1, 2, 3, 47, 48, 49, 50, 300}) {
      std::vector<int32_t> symbols(length);
      for (int32_t& symbol : symbols) symbol = static_cast<int32_t>(random.below(5)) - (round % 3 ? 0 : 1) * 2;
      // -1 is not a valid symbol, so it is replaced
      for (int32_t& symbol : symbols) symbol = symbol == -1 ? -3 : symbol;
      const auto expected = by_definition(table, symbols);
      table.merge(symbols);
      EXPECT_EQ(symbols, expected) << "round " << round << ", length " << length;
    }
  }
}

}  // namespace lazy
