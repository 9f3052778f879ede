# Builds the static library `lazy_sentencepiece` from SentencePiece 0.2.0 (library and trainer).
#
# The source is the archive of PyPI's `sentencepiece` package, which `make setup` unpacks into .deps/. The system's
# shared libsentencepiece cannot be used: it exports FLAGS_minloglevel, and LibTorch's c10 exports an object of a
# different type with the same name; in one program, both names refer to the same memory. The same could happen with its
# copies of protobuf and Abseil (LibTorch also contains protobuf). Therefore the conflicting names are renamed by the
# preprocessor, and all symbols are hidden. tests/data/sentencepiece_symbols_test.cc fails if such a name is exported.

set(LAZY_SENTENCEPIECE_DIR "${PROJECT_SOURCE_DIR}/.deps/sentencepiece-0.2.0" CACHE PATH
    "Unpacked source archive of PyPI's sentencepiece 0.2.0")
set(_spm "${LAZY_SENTENCEPIECE_DIR}/sentencepiece")
if(NOT EXISTS "${_spm}/src/sentencepiece_processor.h")
  message(FATAL_ERROR
    "SentencePiece's sources were not found in '${LAZY_SENTENCEPIECE_DIR}'. Run `make setup`, or set "
    "-DLAZY_SENTENCEPIECE_DIR to the unpacked archive of PyPI's sentencepiece 0.2.0.")
endif()

file(GLOB _spm_sources "${_spm}/src/*.cc" "${_spm}/src/builtin_pb/*.cc" "${_spm}/third_party/protobuf-lite/*.cc")
list(FILTER _spm_sources EXCLUDE REGEX "(_main|_test|test_main|testharness)\\.cc$")
list(APPEND _spm_sources "${_spm}/third_party/absl/flags/flag.cc")

set(_spm_generated "${PROJECT_BINARY_DIR}/sentencepiece")
file(CONFIGURE OUTPUT "${_spm_generated}/config.h"
     CONTENT "#define VERSION \"0.2.0\"\n#define PACKAGE \"sentencepiece\"\n#define PACKAGE_STRING \"sentencepiece\"\n")

add_library(lazy_sentencepiece STATIC EXCLUDE_FROM_ALL ${_spm_sources})
target_include_directories(lazy_sentencepiece SYSTEM PUBLIC
  "${_spm}/src" "${_spm}/src/builtin_pb" "${_spm}/third_party/protobuf-lite")
target_include_directories(lazy_sentencepiece PRIVATE "${_spm_generated}" "${_spm}" "${_spm}/third_party")
target_compile_definitions(lazy_sentencepiece
  PUBLIC
    google=lazy_spm_google absl=lazy_spm_absl sentencepiece=lazy_spm
    FLAGS_minloglevel=lazy_spm_FLAGS_minloglevel FLAGS_help=lazy_spm_FLAGS_help FLAGS_version=lazy_spm_FLAGS_version
  PRIVATE HAVE_PTHREAD=1 _USE_INTERNAL_STRING_VIEW)
# -w disables warnings in third-party code. -O2 is used in every configuration, because an unoptimized trainer would
# take minutes.
target_compile_options(lazy_sentencepiece PRIVATE -w -O2 -fvisibility=hidden -fvisibility-inlines-hidden)
target_precompile_headers(lazy_sentencepiece PRIVATE <algorithm> <fstream> <functional> <map> <memory> <set> <sstream>
                          <string> <unordered_map> <vector>)
set_target_properties(lazy_sentencepiece PROPERTIES CXX_STANDARD 17 UNITY_BUILD ${LAZY_UNITY} UNITY_BUILD_BATCH_SIZE 12)
# The sources of protobuf define and undefine macros, so they cannot be part of a unity file.
set(_spm_alone ${_spm_sources})
list(FILTER _spm_alone INCLUDE REGEX "/(builtin_pb|protobuf-lite)/")
set_source_files_properties(${_spm_alone} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
target_link_libraries(lazy_sentencepiece PUBLIC Threads::Threads)
