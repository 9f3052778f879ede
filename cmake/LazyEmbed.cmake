# lazy_embed(HEADER CONSTANT FILE): writes HEADER into the build of the including folder, with the text of FILE as the
# constant lazy::CONSTANT. The program carries such files, so there is none to find when it runs.
set(LAZY_EMBED_TEMPLATE "${CMAKE_CURRENT_LIST_DIR}/embedded_file.h.in")
function(lazy_embed header constant file)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
  file(READ "${file}" text)
  get_filename_component(name "${file}" NAME)
  configure_file("${LAZY_EMBED_TEMPLATE}" "${header}" @ONLY)
endfunction()
