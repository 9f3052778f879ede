# Small helpers so that each folder's CMakeLists.txt states only what is particular to it.

# Most of a file's compile time goes into headers, so each kind of target shares one precompiled header:
#   cmake/std_pch.h    the standard library, fmt, JSON: targets without Torch
#   cmake/torch_pch.h  the same and ATen: targets that use tensors
#   cmake/ops_pch.h    ATen, the dispatcher and custom autograd functions: the operators
# and tests_pch.h, torch_tests_pch.h add GoogleTest.
# Every pending template of a precompiled header costs time in every file that uses it, so each holds only what most of
# its files need. A file still includes what it uses.
function(lazy_precompiled_header name header)
  if(TARGET ${name})
    return()
  endif()
  file(WRITE "${CMAKE_BINARY_DIR}/${name}.cc" "// Carries the precompiled header.\n")
  add_library(${name} OBJECT "${CMAKE_BINARY_DIR}/${name}.cc")
  target_link_libraries(${name} PRIVATE ${ARGN} lazy_flags)
  target_precompile_headers(${name} PRIVATE "${PROJECT_SOURCE_DIR}/cmake/${header}")
endfunction()

# PyTorch's wheel carries headers of fmt, newer than the system's, without exporting the library. A folder that holds
# nothing but the system's fmt headers goes before the wheel's, so that all of our files use one fmt.
function(lazy_use_system_fmt target)
  if(TARGET fmt::fmt)
    get_target_property(headers fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
    if(NOT headers)
      set(headers /usr/include)
    endif()
    file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/system_fmt")
    file(CREATE_LINK "${headers}/fmt" "${CMAKE_BINARY_DIR}/system_fmt/fmt" SYMBOLIC)
    target_include_directories(${target} BEFORE PRIVATE "${CMAKE_BINARY_DIR}/system_fmt")
    target_link_libraries(${target} PRIVATE fmt::fmt)
  endif()
endfunction()

# Links LibTorch and uses its precompiled header; lazy_use_torch(target ops) that of the operators, and so on.
function(lazy_use_torch target)
  set(kind torch)
  if(ARGN)
    set(kind ${ARGN})
  endif()
  target_link_libraries(${target} PUBLIC LibTorch::cpu)
  if(kind STREQUAL "ops")
    lazy_precompiled_header(lazy_ops_pch ops_pch.h LibTorch::cpu)
  else()
    lazy_use_system_fmt(${target})
    if(NOT TARGET lazy_${kind}_pch)
      lazy_precompiled_header(lazy_${kind}_pch ${kind}_pch.h LibTorch::cpu $<TARGET_NAME_IF_EXISTS:GTest::gmock>)
      lazy_use_system_fmt(lazy_${kind}_pch)
    endif()
  endif()
  target_precompile_headers(${target} REUSE_FROM lazy_${kind}_pch)
endfunction()

# lazy_library(name [TORCH] [STD] [O1] DEPS ...): a static library of every .cc below the calling folder. TORCH and STD
# choose the precompiled header; a library with neither has none. O1: it computes nothing, so its Release build is -O1.
function(lazy_library name)
  cmake_parse_arguments(ARG "TORCH;STD;O1" "" "DEPS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cc")
  list(FILTER sources EXCLUDE REGEX "/cuda/")  # needs nvcc: a library of its own
  if(ARG_TORCH)
    # The few files that define autograd functions take the operators' precompiled header.
    foreach(source IN LISTS sources)
      file(STRINGS "${source}" defines_autograd REGEX "#include <torch/csrc/autograd/custom_function.h>")
      if(defines_autograd)
        list(APPEND autograd "${source}")
        list(REMOVE_ITEM sources "${source}")
      endif()
    endforeach()
    if(autograd)
      add_library(${name}_autograd OBJECT ${autograd})
      target_include_directories(${name}_autograd PRIVATE "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/include")
      target_link_libraries(${name}_autograd PRIVATE ${ARG_DEPS} lazy_flags)
      lazy_use_torch(${name}_autograd ops)
      lazy_use_system_fmt(${name}_autograd)
      list(APPEND sources $<TARGET_OBJECTS:${name}_autograd>)
    endif()
  endif()
  add_library(${name} STATIC ${sources})
  target_include_directories(${name} PUBLIC "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/include")
  target_link_libraries(${name} PUBLIC ${ARG_DEPS} PRIVATE lazy_flags)
  if(ARG_O1)
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
  if(ARG_TORCH)
    lazy_use_torch(${name})
  elseif(ARG_STD)
    lazy_precompiled_header(lazy_std_pch std_pch.h fmt::fmt nlohmann_json::nlohmann_json)
    target_precompile_headers(${name} REUSE_FROM lazy_std_pch)
  endif()
endfunction()

# lazy_tests(name [TORCH] [STD] DEPS ...): a GoogleTest binary of every .cc in the calling folder; a TEST is one ctest.
# ctest hides GPUs: a test that leaves the device to "auto" would compare another device's roundings, and several ranks
# would share one GPU. scripts/test_gpu.sh runs the binaries themselves.
function(lazy_tests name)
  cmake_parse_arguments(ARG "TORCH;STD" "" "DEPS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cc")
  add_executable(${name} ${sources})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/include"
                                             "${PROJECT_SOURCE_DIR}/tests")
  target_compile_definitions(${name} PRIVATE LAZY_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                                             LAZY_BINARY="${CMAKE_BINARY_DIR}/lazy"
                                             LAZY_TEST_PYTHON="${LAZY_PYTHON}")
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} lazy_flags GTest::gtest GTest::gmock GTest::gtest_main)
  # Tests compute little themselves: half the compile time, the same code under test.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  if(ARG_TORCH)
    lazy_use_torch(${name} torch_tests)
  elseif(ARG_STD)
    lazy_precompiled_header(lazy_tests_pch tests_pch.h fmt::fmt nlohmann_json::nlohmann_json GTest::gmock)
    target_precompile_headers(${name} REUSE_FROM lazy_tests_pch)
  endif()
  gtest_discover_tests(${name} NO_PRETTY_VALUES DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT 900 LABELS ${name}
                       ENVIRONMENT OMP_WAIT_POLICY=passive  # side by side, threads that spin hold up others
                       ENVIRONMENT_MODIFICATION CUDA_VISIBLE_DEVICES=set:)
endfunction()
