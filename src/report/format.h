// Numbers as the report's text and pictures show them.
#pragma once
#include <string>

namespace lazy::report {

// Coordinates and other SVG numbers: at most two decimals, no trailing zeros ("12.5", "3", "-0.25").
std::string coordinate(double value);
// `digits` decimals, with a true minus sign for people ("−1.00").
std::string fixed(double value, int digits);
// A share in [0, 1] as percent without the sign: "0.07", "7.3", "59.6"; zero is "0".
std::string percent(double share);
// Large counts in groups of three, separated by thin spaces: "2 097 152".
std::string grouped(double count);

}  // namespace lazy::report
