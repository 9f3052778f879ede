# Settings for the binaries in the wheels: reproducible builds independent of the build folder, run paths from the
# package's folder in site-packages to PyTorch's libraries, and no symbols newer than libstdc++ of Red Hat 9 (GCC 11).
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=>
                    $<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${CMAKE_BINARY_DIR}/=>
                    $<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${LibTorch_DIR}/=torch/>)
# The linker strips the binaries. Stripping them afterwards would not be reproducible: nvcc uses its process id in the
# names of temporary files, these names become symbols in the objects, and the linker's build ID is a hash of the linked
# file including its symbols.
add_link_options(-s)
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH "$ORIGIN;$ORIGIN/../torch/lib")

# libstdc++ of GCC 12 has a new symbol version of std::condition_variable::wait, GLIBCXX_3.4.30, with the same behavior.
set(LAZY_WRAPPED_WAIT _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE)

# Installs the licenses into the wheel's metadata: the license and the third-party notices of this project, and the
# licenses of the system libraries that auditwheel copies into the wheel. The arguments are their Debian package names.
function(lazy_wheel_licenses component)
  set(folder "${SKBUILD_METADATA_DIR}/licenses")
  install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_SOURCE_DIR}/THIRD_PARTY_NOTICES.md"
          DESTINATION "${folder}" COMPONENT ${component})
  foreach(package ${ARGN})
    if(EXISTS "/usr/share/doc/${package}/copyright")
      install(FILES "/usr/share/doc/${package}/copyright" RENAME "${package}.txt"
              DESTINATION "${folder}" COMPONENT ${component})
    endif()
  endforeach()
endfunction()
