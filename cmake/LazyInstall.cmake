# Defines the installation component `program` for `make install PREFIX=DIR`: DIR/bin/lazy, its libraries in
# DIR/lib/lazy, the Python package of `lazy uptrain` in DIR/share/lazy/python (where apps/lazy/uptrain.cc looks for it),
# and the licenses. PyTorch is not copied: the run path refers to the PyTorch installation that was used for the build.
set(libraries lazy_ops)
if(TARGET lazy_nccl)
  list(APPEND libraries lazy_nccl)
endif()
# The CUDA kernels are installed if they were built (`make install` of a build without them must not compile them).
# Kernels of an earlier installation would not match the program.
if(TARGET lazy_ops_cuda)
  install(TARGETS lazy_ops_cuda LIBRARY DESTINATION lib/lazy COMPONENT program OPTIONAL)
endif()
install(CODE "if(NOT EXISTS \"${CMAKE_BINARY_DIR}/liblazy_ops_cuda.so\")
                file(REMOVE \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/lib/lazy/liblazy_ops_cuda.so\")
              endif()" COMPONENT program)
add_custom_target(lazy_program DEPENDS lazy ${libraries} $<TARGET_NAME_IF_EXISTS:lazy_ops_cuda>)
set_target_properties(lazy PROPERTIES INSTALL_RPATH "$ORIGIN/../lib/lazy;${LibTorch_RPATH}")
foreach(library ${libraries} lazy_ops_cuda)
  if(TARGET ${library})
    set_target_properties(${library} PROPERTIES INSTALL_RPATH "$ORIGIN;${LibTorch_RPATH}")
  endif()
endforeach()
install(TARGETS lazy ${libraries} RUNTIME DESTINATION bin COMPONENT program
                                  LIBRARY DESTINATION lib/lazy COMPONENT program)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/python/lazy_lab" DESTINATION share/lazy/python COMPONENT program
        PATTERN __pycache__ EXCLUDE)
# The configurations, which `lazy lab` extends and `lazy train --model NAME --recipe NAME` composes.
install(DIRECTORY "${PROJECT_SOURCE_DIR}/configs" DESTINATION share/lazy COMPONENT program PATTERN "demo*" EXCLUDE)
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_SOURCE_DIR}/THIRD_PARTY_NOTICES.md"
        DESTINATION share/doc/lazy COMPONENT program)
