// The commit that the program was built from; cmake/Commit.cmake writes the source.
#pragma once
namespace lazy::cli {
extern const char* const kCommit;  // abbreviated, with -dirty where files differ from it; empty: not known
}
