#include "eval/requests.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/error.h"
#include "harness.h"

namespace lazy::eval {

using Ids = std::vector<int32_t>;

Ids range(int32_t begin, int32_t end) {
  Ids ids(static_cast<size_t>(end - begin));
  std::iota(ids.begin(), ids.end(), begin);
  return ids;
}

TEST(RollingWindows, Windows_MatchHandComputedValues) {
  const Ids tokens = range(1, 11);  // the tokens are 1 to 10, and the prefix is 0
  // Windows of 4 tokens with a context of one token. The first two windows predict 4 tokens each. The last window
  // predicts the 2 remaining tokens; its input is extended to the left, so that it also has 4 tokens.
  const std::vector<Window> expected = {
      {{0, 1, 2, 3}, {1, 2, 3, 4}}, {{4, 5, 6, 7}, {5, 6, 7, 8}}, {{6, 7, 8, 9}, {9, 10}}};
  EXPECT_EQ(rolling_windows(tokens, 0, 4), expected);
  // With a context of 2 tokens, each window after the first one predicts 3 tokens.
  const std::vector<Window> two = {{{0, 1, 2, 3}, {1, 2, 3, 4}}, {{3, 4, 5, 6}, {5, 6, 7}}, {{6, 7, 8, 9}, {8, 9, 10}}};
  EXPECT_EQ(rolling_windows(tokens, 0, 4, 2), two);
  // Test texts that are shorter than a window, exactly one window long, one token long, and empty.
  EXPECT_EQ(rolling_windows(range(1, 4), 0, 4), (std::vector<Window>{{{0, 1, 2}, {1, 2, 3}}}));
  EXPECT_EQ(rolling_windows(range(1, 5), 0, 4), (std::vector<Window>{{{0, 1, 2, 3}, {1, 2, 3, 4}}}));
  EXPECT_EQ(rolling_windows(Ids{7}, 0, 4), (std::vector<Window>{{{0}, {7}}}));
  EXPECT_TRUE(rolling_windows(Ids{}, 0, 4).empty());
  // Windows of one token have only the preceding token as input.
  EXPECT_EQ(rolling_windows(Ids{5, 6, 7}, 0, 1), (std::vector<Window>{{{0}, {5}}, {{5}, {6}}, {{6}, {7}}}));
  EXPECT_THROW(rolling_windows(tokens, 0, 4, 5), Error);
  EXPECT_THROW(rolling_windows(tokens, 0, 4, 0), Error);
}

TEST(RollingWindows, Windows_PredictEveryTokenOnceFromPrecedingTokens) {
  for (int32_t n : {1, 2, 3, 7, 63, 64, 65, 200}) {
    for (int64_t length : {1, 2, 5, 64}) {
      for (int64_t context = 1; context <= std::min<int64_t>(length, 3); ++context) {
        int32_t next = 1;
        for (const Window& w : rolling_windows(range(1, n + 1), 0, length, context)) {
          EXPECT_LE(static_cast<int64_t>(w.input.size()), length);
          for (size_t i = 0; i < w.targets.size(); ++i) {
            EXPECT_EQ(w.targets[i], next++);
            EXPECT_EQ(w.input[w.input.size() - w.targets.size() + i], w.targets[i] - 1);
          }
        }
        EXPECT_EQ(next, n + 1);
      }
    }
  }
}

TEST(RollingWindows, BosEveryWindow_StartsEachWindowWithBos) {
  const Ids tokens = range(1, 11);  // the tokens are 1 to 10, and BOS is 0
  const std::vector<Window> expected = {
      {{0, 1, 2, 3}, {1, 2, 3, 4}}, {{0, 5, 6, 7}, {5, 6, 7, 8}}, {{0, 7, 8, 9}, {9, 10}}};
  EXPECT_EQ(rolling_windows_with_bos(tokens, 0, 4), expected);
  EXPECT_EQ(rolling_windows_with_bos(range(1, 4), 0, 4), (std::vector<Window>{{{0, 1, 2}, {1, 2, 3}}}));
  EXPECT_TRUE(rolling_windows_with_bos(Ids{}, 0, 4).empty());
}

TEST(RollingWindows, Windows_MatchHarness) {
  LAZY_NEEDS_HARNESS();
  const std::string script = R"(
import json, sys
from lm_eval import utils
out = []
for n in (0, 1, 2, 3, 9, 10, 63, 64, 65, 129, 400):
    for length in (1, 2, 5, 64):
        for context in (1, 2, 5):
            if context > length: continue
            pairs = utils.get_rolling_token_windows(token_list=list(range(1, n + 1)), prefix_token=0, )"
                             R"(max_seq_len=length, context_len=context)
            # What the model gets: context + continuation of the disjoint pair, without the last token.
            windows = [((a + b)[:-1], b) for a, b in map(utils.make_disjoint_window, pairs)]
            out.append([n, length, context, windows])
json.dump(out, open(sys.argv[1], 'w'))
)";
  int compared = 0;
  for (const auto& entry : harness_output(script)) {
    const auto n = entry[0].get<int32_t>();
    const auto windows = rolling_windows(range(1, n + 1), 0, entry[1], entry[2]);
    ASSERT_EQ(windows.size(), entry[3].size());
    for (size_t i = 0; i < windows.size(); ++i) {
      EXPECT_EQ(windows[i].input, entry[3][i][0].get<Ids>()) << n << " " << entry[1] << " " << entry[2];
      EXPECT_EQ(windows[i].targets, entry[3][i][1].get<Ids>());
      ++compared;
    }
  }
  EXPECT_GT(compared, 100);
}

}  // namespace lazy::eval
