# Writes render_chat.h and embedded_page.h, which hold files of this folder, into the build of the including folder.
set(here "${CMAKE_CURRENT_LIST_DIR}")
# The script that renders chat templates is part of the program.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${here}/openai/render_chat.py")
file(READ "${here}/openai/render_chat.py" RENDER_CHAT)
configure_file("${here}/openai/render_chat.h.in" render_chat.h @ONLY)
# The page at `/` is one file with its style and scripts in it.
set(PAGE_SCRIPT "\n")
foreach(name api view column main)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${here}/page/${name}.js")
  file(READ "${here}/page/${name}.js" part)
  string(APPEND PAGE_SCRIPT "${part}")
endforeach()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${here}/page/page.css" "${here}/page/page.html")
file(READ "${here}/page/page.css" PAGE_STYLE)
configure_file("${here}/page/page.html" page.html @ONLY)
file(READ "${CMAKE_CURRENT_BINARY_DIR}/page.html" PAGE)
configure_file("${here}/page/page.h.in" embedded_page.h @ONLY)
