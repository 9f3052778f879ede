// Formats fractions as percentages for tables and messages.
#pragma once
#include <string>

namespace lazy {

// Formats 0.1234 as "12.34", without a percent sign. A value that rounds to zero has no minus sign.
std::string percent_number(double fraction, int digits = 2);

}  // namespace lazy
