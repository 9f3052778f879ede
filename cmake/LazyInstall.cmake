# Defines the installation component `program` for `make install PREFIX=DIR`: DIR/bin/lazy, its libraries in
# DIR/lib/lazy, the Python package of `lazy uptrain` in DIR/share/lazy/python (where apps/lazy/uptrain.cc looks for it),
# and the licenses. PyTorch is not copied: the run path refers to the PyTorch installation that was used for the build.
set(libraries lazy_ops)
foreach(library lazy_ops_cuda lazy_nccl)
  if(TARGET ${library})
    list(APPEND libraries ${library})
  endif()
endforeach()
add_custom_target(lazy_program DEPENDS lazy ${libraries})
set_target_properties(lazy PROPERTIES INSTALL_RPATH "$ORIGIN/../lib/lazy;${LibTorch_RPATH}")
set_target_properties(${libraries} PROPERTIES INSTALL_RPATH "$ORIGIN;${LibTorch_RPATH}")
install(TARGETS lazy ${libraries} RUNTIME DESTINATION bin COMPONENT program
                                  LIBRARY DESTINATION lib/lazy COMPONENT program)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/python/lazy_lab" DESTINATION share/lazy/python COMPONENT program
        PATTERN __pycache__ EXCLUDE)
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_SOURCE_DIR}/THIRD_PARTY_NOTICES.md"
        DESTINATION share/doc/lazy COMPONENT program)
