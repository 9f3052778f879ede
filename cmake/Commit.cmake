# Writes a source file with the git commit that is being built, if the commit has changed since the last build. The
# commit is an empty string outside of a repository.
execute_process(COMMAND git -C "${SOURCE}" describe --always --dirty --abbrev=12 --exclude "*"
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
file(CONFIGURE OUTPUT "${OUTPUT}" @ONLY CONTENT [[
// Made by cmake/Commit.cmake.
#include "commit.h"

const char* const lazy::cli::kCommit = "@commit@";
]])
