// Commit from which the program was built. cmake/Commit.cmake writes the source file.
#pragma once
namespace lazy::cli {
extern const char* const kCommit;  // abbreviated; ends with -dirty if files differ from it; empty if unknown
}
