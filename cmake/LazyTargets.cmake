# CMake functions that keep the CMakeLists.txt of each directory short.

# A fresh build spends most of its time in headers that every file includes: GCC instantiates every pending template of
# a precompiled header at the end of each file (1.2 s for ATen with JSON), and each file generates code for the JSON and
# formatting templates that it uses. Unity builds compile several sources as one file, so that this cost occurs once per
# batch. Switch the option off to recompile a single file often, or to find missing includes.
option(LAZY_UNITY "Compile several sources as one file: a fresh build takes half the CPU time" ON)

# PyTorch's wheel contains fmt headers that are newer than the system's, but does not export the library. A folder that
# only contains the system's fmt headers precedes the wheel's include path, so that all files use the system's version.
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

# There are two precompiled headers: cmake/torch_pch.h for sources that use ATen, cmake/std_pch.h for all other sources.
# Every source file must nevertheless include the headers that it uses.
function(lazy_use_precompiled_header target kind)
  set(carrier lazy_${kind}_pch)
  if(NOT TARGET ${carrier})
    file(WRITE "${CMAKE_BINARY_DIR}/${carrier}.cc" "// Carries the precompiled header.\n")
    add_library(${carrier} OBJECT "${CMAKE_BINARY_DIR}/${carrier}.cc")
    target_link_libraries(${carrier} PRIVATE fmt::fmt nlohmann_json::nlohmann_json lazy_flags)
    if(kind STREQUAL "torch")
      target_link_libraries(${carrier} PRIVATE LibTorch::cpu)
    endif()
    target_precompile_headers(${carrier} PRIVATE "${PROJECT_SOURCE_DIR}/cmake/${kind}_pch.h")
    lazy_use_system_fmt(${carrier})
  endif()
  target_precompile_headers(${target} REUSE_FROM ${carrier})
endfunction()

# lazy_sources(target [OPTIMIZE level] [BATCH n] [SOURCES ...] [TORCH_SOURCES ...]): compiles sources for `target`, with
# the target's libraries, definitions and include directories. TORCH_SOURCES use ATen. OPTIMIZE replaces -O3 of the
# Release build (`1` for code that is not performance critical). BATCH is the number of sources per unity file.
function(lazy_sources target)
  cmake_parse_arguments(ARG "" "OPTIMIZE;BATCH" "SOURCES;TORCH_SOURCES" ${ARGN})
  if(NOT ARG_BATCH)
    set(ARG_BATCH 8)
  endif()
  foreach(kind std torch)
    set(list ARG_SOURCES)
    if(kind STREQUAL "torch")
      set(list ARG_TORCH_SOURCES)
    endif()
    if(NOT ${list})
      continue()
    endif()
    set(objects ${target}_${kind}${ARG_OPTIMIZE})
    add_library(${objects} OBJECT ${${list}})
    target_include_directories(${objects} PRIVATE $<TARGET_PROPERTY:${target},INCLUDE_DIRECTORIES>)
    target_compile_definitions(${objects} PRIVATE $<TARGET_PROPERTY:${target},COMPILE_DEFINITIONS>)
    target_compile_options(${objects} PRIVATE $<TARGET_PROPERTY:${target},COMPILE_OPTIONS>)
    target_link_libraries(${objects} PRIVATE $<TARGET_PROPERTY:${target},LINK_LIBRARIES>)
    if(ARG_OPTIMIZE)
      target_compile_options(${objects} PRIVATE $<$<CONFIG:Release>:-O${ARG_OPTIMIZE}>)
    endif()
    lazy_use_system_fmt(${objects})
    lazy_use_precompiled_header(${objects} ${kind})
    set_target_properties(${objects} PROPERTIES UNITY_BUILD ${LAZY_UNITY} UNITY_BUILD_BATCH_SIZE ${ARG_BATCH})
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${objects}>)
  endforeach()
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
endfunction()

# lazy_library(name [DEPS ...] [arguments of lazy_sources]): a static library of the given sources. With TORCH_SOURCES
# it links LibTorch.
function(lazy_library name)
  cmake_parse_arguments(ARG "" "OPTIMIZE;BATCH" "DEPS;SOURCES;TORCH_SOURCES" ${ARGN})
  add_library(${name} STATIC)
  target_include_directories(${name} PUBLIC "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/include")
  target_link_libraries(${name} PUBLIC ${ARG_DEPS} PRIVATE lazy_flags)
  if(ARG_TORCH_SOURCES)
    target_link_libraries(${name} PUBLIC LibTorch::cpu)
  endif()
  lazy_sources(${name} OPTIMIZE ${ARG_OPTIMIZE} BATCH ${ARG_BATCH}
               SOURCES ${ARG_SOURCES} TORCH_SOURCES ${ARG_TORCH_SOURCES})
endfunction()

# Adds the ctest entries NAME.LABEL.1, ..., NAME.LABEL.SHARDS, which together run the tests of a GoogleTest binary that
# FILTER selects. Each shard is one process with many tests, because loading LibTorch takes longer than most tests. The
# results are written to test-results/NAME.LABEL.N.xml, which scripts/test_summary.py reads.
function(lazy_test_shards binary label shards filter)
  foreach(shard RANGE 1 ${shards})
    math(EXPR index "${shard} - 1")
    set(test ${binary}.${label}.${shard})
    add_test(NAME ${test} COMMAND ${binary} --gtest_brief=1 "--gtest_filter=${filter}"
                                            "--gtest_output=xml:${CMAKE_BINARY_DIR}/test-results/${test}.xml")
    # OMP_WAIT_POLICY=passive: other tests run in parallel, and spinning threads would occupy their cores.
    # CUDA_VISIBLE_DEVICES is empty: with a GPU, tests with the device "auto" would compare results with different
    # rounding, and several ranks would share one GPU. scripts/test_gpu.sh runs the binaries on a GPU.
    set_tests_properties(${test} PROPERTIES TIMEOUT 1800 LABELS ${label}
      ENVIRONMENT "OMP_WAIT_POLICY=passive;GTEST_TOTAL_SHARDS=${shards};GTEST_SHARD_INDEX=${index}"
      ENVIRONMENT_MODIFICATION CUDA_VISIBLE_DEVICES=set:)
  endforeach()
endfunction()

# lazy_tests(name [TORCH] [PLAIN] DEPS ... [SHARDS n] [SLOW n] [DATA] [REAL] [ALONE] [UNIT pattern] [EXCEPT pattern]):
# builds a GoogleTest binary from all .cc files in the calling directory. The suffix of a test suite's name is its
# label:
#   *Slow   longer than about two seconds: not part of `make check`
#   *Data   needs LAZY_TEST_DATA
#   *Real   needs real checkpoints
#   *Alone  each test runs in a separate process, because it changes the state of its process
# All other suites are unit tests. SHARDS and SLOW are the numbers of processes for the unit tests and the slow tests.
# SLOW, DATA, REAL and ALONE must be given if the label occurs (tests/repository checks this). UNIT: only tests that
# match the pattern are unit tests, and all other tests are slow, regardless of their names (used for emulated kernels,
# whose tests are fast on a GPU). EXCEPT: tests that only run on a GPU. TORCH links LibTorch. PLAIN uses no precompiled
# header.
function(lazy_tests name)
  cmake_parse_arguments(ARG "TORCH;PLAIN;DATA;REAL;ALONE" "SHARDS;SLOW;UNIT;EXCEPT;BATCH" "DEPS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cc")
  add_executable(${name} ${sources})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/include"
                                             "${PROJECT_SOURCE_DIR}/tests")
  target_compile_definitions(${name} PRIVATE LAZY_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                                             LAZY_BINARY="${CMAKE_BINARY_DIR}/lazy"
                                             LAZY_TEST_PYTHON="${LAZY_PYTHON}")
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} lazy_flags GTest::gtest GTest::gmock GTest::gtest_main)
  # -O1 halves the compile time of the test sources. The code under test is in libraries and is not affected.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  if(NOT ARG_BATCH)
    set(ARG_BATCH 6)
  endif()
  if(ARG_TORCH)
    target_link_libraries(${name} PRIVATE LibTorch::cpu)
    lazy_use_system_fmt(${name})
    lazy_use_precompiled_header(${name} torch)
  elseif(NOT ARG_PLAIN)
    lazy_use_precompiled_header(${name} std)
  endif()
  if(NOT ARG_PLAIN)
    set_target_properties(${name} PROPERTIES UNITY_BUILD ${LAZY_UNITY} UNITY_BUILD_BATCH_SIZE ${ARG_BATCH})
  endif()

  set(except "")
  if(ARG_EXCEPT)
    set(except ":${ARG_EXCEPT}")
  endif()
  set(labelled "*Slow.*:*Slow/*:*Data.*:*Data/*:*Real.*:*Real/*:*Alone.*:*Alone/*")
  if(NOT ARG_SHARDS)
    set(ARG_SHARDS 1)
  endif()
  if(ARG_UNIT)
    lazy_test_shards(${name} unit ${ARG_SHARDS} "${ARG_UNIT}-${labelled}${except}")
    lazy_test_shards(${name} slow ${ARG_SLOW} "-${ARG_UNIT}${except}")
  else()
    lazy_test_shards(${name} unit ${ARG_SHARDS} "-${labelled}${except}")
    if(ARG_SLOW)
      lazy_test_shards(${name} slow ${ARG_SLOW} "*Slow.*:*Slow/*-${except}")
    endif()
  endif()
  foreach(label Data Real)
    string(TOUPPER ${label} option)
    if(ARG_${option})
      string(TOLOWER ${label} lower)
      lazy_test_shards(${name} ${lower} 1 "*${label}.*:*${label}/*")
    endif()
  endforeach()
  if(ARG_ALONE)
    add_test(NAME ${name}.alone
             COMMAND "${PROJECT_SOURCE_DIR}/scripts/run_alone.py" $<TARGET_FILE:${name}> "*Alone.*:*Alone/*"
                     "${CMAKE_BINARY_DIR}/test-results/${name}.alone.xml")
    set_tests_properties(${name}.alone PROPERTIES TIMEOUT 1800 LABELS unit ENVIRONMENT OMP_WAIT_POLICY=passive
                                                  ENVIRONMENT_MODIFICATION CUDA_VISIBLE_DEVICES=set:)
  endif()
endfunction()
