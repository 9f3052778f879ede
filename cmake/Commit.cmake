# Writes the source that holds the commit which is being built, where it has changed. Empty outside of a repository.
execute_process(COMMAND git -C "${SOURCE}" describe --always --dirty --abbrev=12 --exclude "*"
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
file(CONFIGURE OUTPUT "${OUTPUT}" @ONLY CONTENT [[
// Made by cmake/Commit.cmake.
#include "commit.h"

const char* const lazy::cli::kCommit = "@commit@";
]])
