# What the wheels' binaries have of their own: the same bytes wherever they are built, run paths that lead from the
# package's folder in site-packages to PyTorch's, and no symbol newer than Red Hat 9's libstdc++ (GCC 11).
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=>
                    $<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${CMAKE_BINARY_DIR}/=>
                    $<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${LibTorch_DIR}/=torch/>)
# Stripped by the linker, not after it: nvcc puts its process's number into the names of temporary files, these are
# symbols of the objects, and the linker's build ID is a hash of all that it writes.
add_link_options(-s)
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH "$ORIGIN;$ORIGIN/../torch/lib")

# libstdc++ of GCC 12 gave std::condition_variable::wait a new version, GLIBCXX_3.4.30; what it does is the same.
set(LAZY_WRAPPED_WAIT _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE)

# Licenses in the wheel's metadata: ours, the notices, and those of the system's libraries that auditwheel brings in, by
# the names of their Debian packages.
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
