// Commit from which the program was built. cmake/Commit.cmake writes the source file.
#pragma once
namespace lazy::cli {
extern const char* const kCommit;  // abbreviated hash, with -dirty if files were changed; empty: unknown
}
