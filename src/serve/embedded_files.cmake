# Generates two headers in the build directory of the including folder. One contains the Python script that renders chat
# templates, the other contains the web page that the server returns at `/`.
include("${CMAKE_CURRENT_LIST_DIR}/../../cmake/LazyEmbed.cmake")
set(here "${CMAKE_CURRENT_LIST_DIR}")
lazy_embed(render_chat.h kRenderChat "${here}/openai/render_chat.py")
# The page is a single HTML file that contains its style sheet and scripts.
set(PAGE_SCRIPT "\n")
foreach(name api view column main)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${here}/page/${name}.js")
  file(READ "${here}/page/${name}.js" part)
  string(APPEND PAGE_SCRIPT "${part}")
endforeach()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${here}/page/page.css" "${here}/page/page.html")
file(READ "${here}/page/page.css" PAGE_STYLE)
configure_file("${here}/page/page.html" page.html @ONLY)
lazy_embed(embedded_page.h kPage "${CMAKE_CURRENT_BINARY_DIR}/page.html")
