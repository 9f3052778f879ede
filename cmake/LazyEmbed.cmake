# lazy_embed(HEADER CONSTANT FILE): writes HEADER into the build folder of the calling directory. HEADER defines the
# constant lazy::CONSTANT with the text of FILE. Embedded files need not be found when the program runs.
set(LAZY_EMBED_TEMPLATE "${CMAKE_CURRENT_LIST_DIR}/embedded_file.h.in")
function(lazy_embed header constant file)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
  file(READ "${file}" text)
  get_filename_component(name "${file}" NAME)
  configure_file("${LAZY_EMBED_TEMPLATE}" "${header}" @ONLY)
endfunction()
