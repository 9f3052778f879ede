#include "generate/stop_strings.h"

#include <gtest/gtest.h>

#include "core/random.h"

namespace lazy {
namespace {

struct Outcome {
  std::string text;
  bool found = false;
  bool operator==(const Outcome&) const = default;
};

Outcome run(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  StopStrings strings(stops);
  Outcome out;
  for (const std::string& piece : pieces) out.text += strings.push(piece);
  out.found = strings.found();
  out.text += strings.finish();
  return out;
}

// Reference implementation: reads the text byte by byte until it ends with a stop string.
Outcome plain(const std::vector<std::string>& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (text.substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
    }
    if (longest > 0) return {text.substr(0, end - longest), true};
  }
  return {text, false};
}

TEST(StopStrings, Matches_SpanPieces) {
  EXPECT_EQ(run({"STOP"}, {"a S", "T", "OP b"}), (Outcome{"a ", true}));
  EXPECT_EQ(run({"STOP"}, {"a STO"}), (Outcome{"a STO", false}));
  EXPECT_EQ(run({"STOP"}, {"STSTOP"}), (Outcome{"ST", true}));
  EXPECT_EQ(run({}, {"a", "b"}), (Outcome{"ab", false}));
  EXPECT_EQ(run({"\n\n"}, {"a\n", "b\n", "\nc"}), (Outcome{"a\nb", true}));
}

TEST(StopStrings, Push_HoldsBackOnlyPossibleMatches) {
  StopStrings strings({"abc", "x"});
  EXPECT_EQ(strings.push("1a"), "1");
  EXPECT_EQ(strings.push("b"), "");
  EXPECT_EQ(strings.push("a"), "ab");
  EXPECT_EQ(strings.push(""), "");
  EXPECT_EQ(strings.push("d"), "ad");
  EXPECT_EQ(strings.push("yx"), "y");
  EXPECT_TRUE(strings.found());
  EXPECT_EQ(strings.push("more"), "");
  EXPECT_EQ(strings.finish(), "");
}

TEST(StopStrings, FirstCompleteMatch_EndsTheText) {
  EXPECT_EQ(run({"abcd", "bc"}, {"abcd"}), (Outcome{"a", true}));
  EXPECT_EQ(run({"c", "abc"}, {"xabc"}), (Outcome{"x", true}));
}

TEST(StopStrings, Result_IsIndependentOfThePieces) {
  Random random(3);
  int found = 0;
  for (int round = 0; round < 3000; ++round) {
    const auto word = [&](uint64_t most) {
      std::string out(1 + random.below(most), 'a');
      for (char& letter : out) letter = static_cast<char>('a' + random.below(2));
      return out;
    };
    std::vector<std::string> stops(random.below(4));
    for (std::string& stop : stops) stop = word(6);
    std::vector<std::string> pieces(random.below(8));
    std::string text;
    for (std::string& piece : pieces) text += piece = word(5);
    const Outcome expected = plain(stops, text);
    EXPECT_EQ(run(stops, pieces), expected) << text;
    found += expected.found;
  }
  EXPECT_GT(found, 500);
}

}  // namespace
}  // namespace lazy
