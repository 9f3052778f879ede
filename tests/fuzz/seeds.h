// The seed corpora: valid inputs of every target, made by the helpers that the other tests use.
#pragma once
#include <map>
#include <string>

namespace lazy::fuzz {

// target -> name -> input. A name that begins with "bad" stands for an input that is refused, one with
// "other" for either.
using Seeds = std::map<std::string, std::map<std::string, std::string>>;
Seeds make_seeds();

}  // namespace lazy::fuzz
