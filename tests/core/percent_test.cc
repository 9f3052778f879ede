#include "core/percent.h"

#include <gtest/gtest.h>

namespace lazy {

TEST(Percent, RoundedZero_HasNoSign) {
  EXPECT_EQ(percent_number(-1e-9), "0.00");
  EXPECT_EQ(percent_number(-0.0), "0.00");
  EXPECT_EQ(percent_number(-0.00049, 1), "0.0");
  EXPECT_EQ(percent_number(-0.4e-2, 0), "0");
}

TEST(Percent, NonzeroValue_KeepsSign) {
  EXPECT_EQ(percent_number(0.12345), "12.35");
  EXPECT_EQ(percent_number(-0.0001), "-0.01");
  EXPECT_EQ(percent_number(-0.5, 1), "-50.0");
  EXPECT_EQ(percent_number(1, 0), "100");
}

}  // namespace lazy
