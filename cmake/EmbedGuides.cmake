# Writes a source file that contains the text of the Markdown files GUIDES.
set(source "// Made by cmake/EmbedGuides.cmake.\n#include \"guides.h\"\n\n")
string(APPEND source "const std::vector<lazy::cli::Guide> lazy::cli::kGuides = {\n")
foreach(guide IN LISTS GUIDES)
  cmake_path(GET guide STEM topic)
  file(READ "${guide}" text)
  string(APPEND source "    {\"${topic}\", R\"GUIDE(${text})GUIDE\"},\n")
endforeach()
file(WRITE "${OUTPUT}" "${source}};\n")
