// Error messages for options that a command does not have.
#pragma once
#include <string>
#include <vector>

namespace lazy::cli {

// Returns "unknown option --stesp (did you mean --steps?), --ctx-size (use --max-model-len)" for the options among
// `words`, the arguments that the parser has not accepted, in the order of the command line. Returns "" if no word is
// an option. known: the names of the command's options, with leading dashes.
std::string describe_unknown_options(const std::vector<std::string>& words, const std::vector<std::string>& known);

}  // namespace lazy::cli
