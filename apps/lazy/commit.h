// The git commit from which the program was built. cmake/Commit.cmake generates the source file that defines kCommit.
#pragma once
namespace lazy::cli {
extern const char* const kCommit;  // abbreviated hash, with -dirty if files were changed; empty: unknown
}
