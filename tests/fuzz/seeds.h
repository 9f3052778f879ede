// The seed corpora: valid inputs of every target, created by the helpers that the other tests use.
#pragma once
#include <map>
#include <string>

namespace lazy::fuzz {

// Maps target -> name -> input. A name that begins with "bad" is an input that must be rejected. A name that begins
// with "other" is an input that may be accepted or rejected.
using Seeds = std::map<std::string, std::map<std::string, std::string>>;
Seeds make_seeds();

}  // namespace lazy::fuzz
