#include "core/markdown_table.h"

#include <gtest/gtest.h>

namespace lazy {

using Rows = std::vector<std::vector<std::string>>;

const Rows kRows = {
    {"task", "n", ""}, {"piqa", "1838", "↑"}, {"übung", "7", "*"}};  // the wide letters are two and three bytes

TEST(MarkdownTable, NumbersStandOnTheRight) {
  EXPECT_EQ(markdown_table(kRows, "lrl"),
            "|task |   n| |\n"
            "|-----|---:|-|\n"
            "|piqa |1838|↑|\n"
            "|übung|   7|*|\n");
}

TEST(MarkdownTable, TheHeaderOnTheLeftOfNumbers) {
  EXPECT_EQ(markdown_table(kRows, "lrl", /*header_left=*/true),
            "|task |n   | |\n"
            "|-----|---:|-|\n"
            "|piqa |1838|↑|\n"
            "|übung|   7|*|\n");
}

TEST(MarkdownTable, ColumnsBeyondThoseNamedStandAsTheLast) {
  EXPECT_EQ(markdown_table({{"length", "first", "second"}, {"64", "1", "22"}}, "lr"),
            "|length|first|second|\n"
            "|------|----:|-----:|\n"
            "|64    |    1|    22|\n");
}

TEST(MarkdownTable, ARuleHasADash) { EXPECT_EQ(markdown_table({{"n"}, {"7"}}, "r"), "| n|\n|-:|\n| 7|\n"); }

}  // namespace lazy
