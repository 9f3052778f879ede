// The page's style sheet.
#pragma once
#include <string>

namespace lazy::report {

std::string style_sheet();

}  // namespace lazy::report
