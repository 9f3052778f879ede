// What the readers ask of the libraries that this build leaves out.
#include "train/config.h"

namespace lazy {

namespace train {
std::string resolve_dtype(const std::string& dtype) { return dtype == "auto" ? "fp32" : dtype; }
}  // namespace train

}  // namespace lazy
