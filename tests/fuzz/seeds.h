// The seed corpora of the fuzz targets: valid inputs, created by the helpers that other tests use, and invalid ones.
#pragma once
#include <map>
#include <string>

namespace lazy::fuzz {

// Maps the name of a target to its inputs by name. An input whose name begins with "bad" must be rejected. An input
// whose name begins with "other" may be accepted or rejected. All other inputs must be accepted.
using Seeds = std::map<std::string, std::map<std::string, std::string>>;
Seeds make_seeds();

}  // namespace lazy::fuzz
