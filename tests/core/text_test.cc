#include "core/text.h"

#include <gtest/gtest.h>

#include <map>
#include <span>

#include "core/counted.h"
#include "core/error.h"
#include "core/random.h"
#include "support/error_of.h"

namespace lazy {

TEST(Counted, Noun_IsSingularForOne) {
  EXPECT_EQ(counted(1, "sample"), "1 sample");
  EXPECT_EQ(counted(0, "sample"), "0 samples");
  EXPECT_EQ(counted(2, "attention layer"), "2 attention layers");
}

TEST(Text, HumanReadableNumbers_AreFormatted) {
  EXPECT_EQ(human_count(999), "999");
  EXPECT_EQ(human_count(1234567), "1.23M");
  EXPECT_EQ(human_count(373.9e6), "374M");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_seconds(3723), "1:02:03");
  EXPECT_EQ(human_seconds(75), "1:15");
}

TEST(Text, Nearest_OnlySuggestsPlausibleTypos) {
  EXPECT_EQ(nearest("stesp", {"steps", "seed"}), "steps");
  EXPECT_EQ(nearest("zzzzzz", {"steps", "seed"}), "");
  const std::vector<std::string> keys{"kind", "distance_bias_window", "window_size", "num_hidden_layers"};
  EXPECT_EQ(nearest("sliding_window", keys), "window_size")
      << "they share a word, and window_size has the fewest other words";
  EXPECT_EQ(nearest("window", keys), "window_size") << "although kind has a smaller edit distance";
  EXPECT_EQ(nearest("n_layers", keys), "num_hidden_layers");
  EXPECT_EQ(nearest("kinds", keys), "kind");
}

TEST(Text, Utf8_InvalidBytesBecomeReplacementCharacters) {
  EXPECT_EQ(complete_utf8_prefix("a\xC3"), 1u);
  EXPECT_EQ(complete_utf8_prefix("a\xC3\xA9"), 3u);
  EXPECT_EQ(to_valid_utf8("a\xFF"
                          "b\xED\xA0\x80"),
            "a\uFFFDb\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(to_valid_utf8("\xF0\x9F\x98"), "\uFFFD");
}

TEST(Text, ErrorMessage_EscapesControlCharacters) {
  EXPECT_EQ(escape_control("a\nb\r\tc\x1b[2J\x7f \xC2\x85 \xC2\xA0 é"), "a\\nb\\r\\tc\\x1b[2J\\x7f \\u0085 \xC2\xA0 é");
  EXPECT_THAT(error_of([] { fail("data", "found {}", "a\nb"); }), Names({"data", "a\\nb"}));
}

TEST(Random, SplitMix64_MatchesReferenceAndShufflesUniformly) {
  // The first outputs of SplitMix64 for the seed 1234567. They were computed with the published reference
  // implementation.
  Random random(1234567);
  EXPECT_EQ(random.next(), 6457827717110365317ull);
  EXPECT_EQ(random.next(), 3203168211198807973ull);
  std::map<std::string, int> seen;
  for (int i = 0; i < 6000; ++i) {
    std::string word = "abc";
    random.shuffle(std::span<char>(word));
    ++seen[word];
  }
  ASSERT_EQ(seen.size(), 6u);
  for (const auto& [word, count] : seen) EXPECT_NEAR(count, 1000, 150) << word;
}

using Rows = std::vector<std::vector<std::string>>;

const Rows kRows = {
    // In UTF-8, the arrow has three bytes and ü has two bytes. Each of them is one column wide.
    {"task", "n", ""},
    {"piqa", "1838", "↑"},
    {"übung", "7", "*"}};

TEST(MarkdownTable, RightAlignedColumns_ArePadded) {
  EXPECT_EQ(markdown_table(kRows, "lrl"),
            "|task |   n| |\n"
            "|-----|---:|-|\n"
            "|piqa |1838|↑|\n"
            "|übung|   7|*|\n");
}

TEST(MarkdownTable, HeaderLeft_AlignsHeaderCells) {
  EXPECT_EQ(markdown_table(kRows, "lrl", /*header_left=*/true),
            "|task |n   | |\n"
            "|-----|---:|-|\n"
            "|piqa |1838|↑|\n"
            "|übung|   7|*|\n");
}

TEST(MarkdownTable, ExtraColumns_UseLastAlignment) {
  EXPECT_EQ(markdown_table({{"length", "first", "second"}, {"64", "1", "22"}}, "lr"),
            "|length|first|second|\n"
            "|------|----:|-----:|\n"
            "|64    |    1|    22|\n");
}

TEST(MarkdownTable, RightAlignedSeparator_HasADash) {
  EXPECT_EQ(markdown_table({{"n"}, {"7"}}, "r"), "| n|\n|-:|\n| 7|\n");
}

}  // namespace lazy
