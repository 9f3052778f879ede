// Fractions as percentages for tables and messages.
#pragma once
#include <string>

namespace lazy {

// 0.1234 -> "12.34", without a percent sign. A value that is rounded to zero has no minus sign.
std::string percent_number(double fraction, int digits = 2);

}  // namespace lazy
