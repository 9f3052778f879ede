# Small helpers so that each folder's CMakeLists.txt states only what is particular to it.

# Precompiled ATen header, built once and reused by every target that links Torch.
# The wheel carries fmt headers of its own, newer than the system's, without exporting the library: translation
# units that see them use them header-only (fmt's versioned namespace keeps the two apart).
function(lazy_use_torch target)
  target_link_libraries(${target} PUBLIC LibTorch::cpu)
  if(NOT TARGET lazy_torch_pch)
    file(WRITE "${CMAKE_BINARY_DIR}/lazy_torch_pch.cc" "// Carries the precompiled header.\n")
    add_library(lazy_torch_pch OBJECT "${CMAKE_BINARY_DIR}/lazy_torch_pch.cc")
    target_link_libraries(lazy_torch_pch PRIVATE LibTorch::cpu lazy_flags)
    target_compile_definitions(lazy_torch_pch PRIVATE FMT_HEADER_ONLY)
    target_precompile_headers(lazy_torch_pch PRIVATE "${PROJECT_SOURCE_DIR}/cmake/torch_pch.h")
  endif()
  target_compile_definitions(${target} PRIVATE FMT_HEADER_ONLY)
  target_precompile_headers(${target} REUSE_FROM lazy_torch_pch)
endfunction()

# lazy_library(name [TORCH] [UNITY] DEPS ...): a static library of every .cc below the calling folder.
# UNITY: several files are compiled as one. Reading the headers is most of a file's time, so this halves a first build.
function(lazy_library name)
  cmake_parse_arguments(ARG "TORCH;UNITY" "" "DEPS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cc")
  list(FILTER sources EXCLUDE REGEX "/cuda/")  # needs nvcc: a library of its own
  add_library(${name} STATIC ${sources})
  target_include_directories(${name} PUBLIC "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/include")
  target_link_libraries(${name} PUBLIC ${ARG_DEPS} PRIVATE lazy_flags)
  if(ARG_UNITY)
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 6)
  endif()
  if(ARG_TORCH)
    lazy_use_torch(${name})
  endif()
endfunction()

# lazy_tests(name [TORCH] [UNITY] DEPS ...): one GoogleTest binary of every .cc in the calling folder. Each TEST is one ctest.
function(lazy_tests name)
  cmake_parse_arguments(ARG "TORCH;UNITY" "" "DEPS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cc")
  add_executable(${name} ${sources})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/include"
                                             "${PROJECT_SOURCE_DIR}/tests")
  target_compile_definitions(${name} PRIVATE LAZY_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                                             LAZY_BINARY="${CMAKE_BINARY_DIR}/lazy"
                                             LAZY_TEST_PYTHON="${LAZY_PYTHON}")
  if(ARG_UNITY)
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 5)
  endif()
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} lazy_flags GTest::gtest GTest::gmock GTest::gtest_main)
  if(ARG_TORCH)
    lazy_use_torch(${name})
  endif()
  gtest_discover_tests(${name} NO_PRETTY_VALUES DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT 900
                       ENVIRONMENT OMP_WAIT_POLICY=passive)  # side by side, threads that spin hold up others
endfunction()
