// Which Python runs what is left to its packages: Parquet (pyarrow) and chat templates (jinja2).
#pragma once
#include <string>

namespace lazy {

std::string python_interpreter();  // $LAZY_PYTHON, else python3

}  // namespace lazy
