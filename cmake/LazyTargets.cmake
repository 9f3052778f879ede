# Small helpers so that each folder's CMakeLists.txt states only what is particular to it.

# Most of a file's compile time goes into headers. Every pending template of a precompiled header costs time in every
# file that uses it (GCC 12: 0.1 s of the standard library and fmt, 0.4 s of JSON, 0.3 s of at::Tensor, 0.8 s more of
# ATen's functions, 1.2 s of custom autograd functions), so there are several, each with what the one before has:
#   cmake/std_pch.h     the standard library and fmt
#   cmake/json_pch.h    JSON
#   cmake/tensor_pch.h  at::Tensor and its methods
#   cmake/torch_pch.h   ATen's functions
# and cmake/ops_pch.h, ATen, the dispatcher and custom autograd functions: the operators, whose build needs neither fmt
# nor JSON. tests_pch.h and torch_tests_pch.h add GoogleTest. A file still includes what it uses.
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

# Uses the precompiled header of KIND: std, json, tensor, torch, ops, tests or torch_tests.
function(lazy_use_precompiled_header target kind)
  set(libraries fmt::fmt nlohmann_json::nlohmann_json)
  if(kind STREQUAL "ops")
    set(libraries LibTorch::cpu)
  elseif(kind MATCHES "tensor|torch")
    list(APPEND libraries LibTorch::cpu)
  endif()
  if(kind MATCHES "tests")
    list(APPEND libraries GTest::gmock)
  endif()
  lazy_precompiled_header(lazy_${kind}_pch ${kind}_pch.h ${libraries})
  if(NOT kind STREQUAL "ops")
    lazy_use_system_fmt(lazy_${kind}_pch)
  endif()
  target_precompile_headers(${target} REUSE_FROM lazy_${kind}_pch)
endfunction()

# The precompiled header that suits a file, by what it includes itself and through the project's headers.
function(lazy_precompiled_kind result file)
  set(order std json tensor torch ops)
  get_property(known GLOBAL PROPERTY "lazy_kind ${file}")
  if(NOT known)
    set(rank 0)
    file(STRINGS "${file}" includes REGEX "^#include")
    foreach(include IN LISTS includes)
      set(kind std)
      if(include MATCHES "<torch/csrc/autograd/custom_function.h>|<torch/library.h>")
        set(kind ops)
      elseif(include MATCHES "<ATen/(core/[A-Z][a-zA-Z]+|Parallel)\\.h>|<c10/core/|<torch/csrc/autograd/grad_mode.h>")
        set(kind tensor)
      elseif(include MATCHES "<(ATen|torch)/")
        set(kind torch)
      elseif(include MATCHES "<nlohmann/json.hpp>")
        set(kind json)
      elseif(include MATCHES "\"ops/stable/")  # of the Python package, which has no precompiled header
      elseif(include MATCHES "\"(.+)\"")
        cmake_path(GET file PARENT_PATH here)
        foreach(folder "${here}" "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}")
          if(EXISTS "${folder}/${CMAKE_MATCH_1}")
            lazy_precompiled_kind(kind "${folder}/${CMAKE_MATCH_1}")
            break()
          endif()
        endforeach()
      endif()
      list(FIND order ${kind} found)
      if(found GREATER rank)
        set(rank ${found})
      endif()
    endforeach()
    list(GET order ${rank} known)
    set_property(GLOBAL PROPERTY "lazy_kind ${file}" ${known})
  endif()
  set(${result} ${known} PARENT_SCOPE)
endfunction()

# Gives every source of a target its precompiled header. CMake knows one a target, so each kind's sources are an object
# library, which compiles them as the target's own: the same libraries, definitions and folders of headers.
function(lazy_precompile target)
  foreach(source IN LISTS ARGN)
    lazy_precompiled_kind(kind "${source}")
    list(APPEND ${kind} "${source}")
  endforeach()
  foreach(kind std json tensor torch ops)
    if(${kind})
      set(objects ${target}_${kind})
      add_library(${objects} OBJECT ${${kind}})
      target_include_directories(${objects} PRIVATE $<TARGET_PROPERTY:${target},INCLUDE_DIRECTORIES>)
      target_compile_definitions(${objects} PRIVATE $<TARGET_PROPERTY:${target},COMPILE_DEFINITIONS>)
      target_compile_options(${objects} PRIVATE $<TARGET_PROPERTY:${target},COMPILE_OPTIONS>)
      target_link_libraries(${objects} PRIVATE $<TARGET_PROPERTY:${target},LINK_LIBRARIES>)
      lazy_use_system_fmt(${objects})
      lazy_use_precompiled_header(${objects} ${kind})
      target_sources(${target} PRIVATE $<TARGET_OBJECTS:${objects}>)
    endif()
  endforeach()
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
endfunction()

# lazy_library(name [TORCH] [PLAIN] [O1] DEPS ...): a static library of every .cc below the calling folder. TORCH links
# LibTorch. PLAIN: no precompiled header. O1: it computes nothing, so its Release build is -O1.
function(lazy_library name)
  cmake_parse_arguments(ARG "TORCH;PLAIN;O1" "" "DEPS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cc")
  list(FILTER sources EXCLUDE REGEX "/cuda/")  # needs nvcc: a library of its own
  add_library(${name} STATIC)
  target_include_directories(${name} PUBLIC "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/include")
  target_link_libraries(${name} PUBLIC ${ARG_DEPS} PRIVATE lazy_flags)
  if(ARG_O1)
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
  if(ARG_TORCH)
    target_link_libraries(${name} PUBLIC LibTorch::cpu)
  endif()
  if(ARG_PLAIN)
    target_sources(${name} PRIVATE ${sources})
  else()
    lazy_precompile(${name} ${sources})
  endif()
endfunction()

# lazy_tests(name [TORCH] [STD] DEPS ... [PREFIX ...] [FILTER ...]): a GoogleTest binary of every .cc in the calling
# folder; a TEST that the filter lets through is one ctest, its name behind the prefix.
# ctest hides GPUs: a test that leaves the device to "auto" would compare another device's roundings, and several ranks
# would share one GPU. scripts/test_gpu.sh runs the binaries themselves.
function(lazy_tests name)
  cmake_parse_arguments(ARG "TORCH;STD" "PREFIX;FILTER" "DEPS" ${ARGN})
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
    target_link_libraries(${name} PRIVATE LibTorch::cpu)
    lazy_use_system_fmt(${name})
    lazy_use_precompiled_header(${name} torch_tests)
  elseif(ARG_STD)
    lazy_use_precompiled_header(${name} tests)
  endif()
  gtest_discover_tests(${name} NO_PRETTY_VALUES DISCOVERY_MODE PRE_TEST TEST_PREFIX "${ARG_PREFIX}"
                       TEST_FILTER "${ARG_FILTER}" PROPERTIES TIMEOUT 900 LABELS ${name}
                       ENVIRONMENT OMP_WAIT_POLICY=passive  # side by side, threads that spin hold up others
                       ENVIRONMENT_MODIFICATION CUDA_VISIBLE_DEVICES=set:)
endfunction()
