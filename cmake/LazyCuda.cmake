# Decides whether the CUDA kernels are built. This requires an nvcc with the same major version as PyTorch's CUDA, but
# no GPU.
#
# Input:  LAZY_CUDA                AUTO (default: ON if there are a suitable nvcc and a PyTorch with CUDA), ON, OFF
#         LAZY_CUDA_ARCHITECTURES  of the portable kernels; the Hopper kernels only exist for sm_90a
# Sets:   LAZY_WITH_CUDA
set(LAZY_CUDA AUTO CACHE STRING "CUDA kernels: AUTO (if nvcc and a PyTorch with CUDA are found), ON, OFF")
set(LAZY_CUDA_ARCHITECTURES "80;90-real" CACHE STRING
    "GPU architectures of the portable CUDA kernels (80: machine code for every 8.x, PTX for later ones)")
set(LAZY_WITH_CUDA OFF)
set(_why "")
if(LAZY_CUDA STREQUAL "OFF" OR LAZY_SANITIZE)
  set(_why "switched off")
elseif(NOT TARGET LibTorch::c10_cuda)
  set(_why "PyTorch in ${LibTorch_DIR} was built without CUDA")
else()
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(LAZY_NVCC nvcc HINTS "$ENV{CUDA_HOME}/bin" /usr/local/cuda/bin)
    if(LAZY_NVCC)
      set(CMAKE_CUDA_COMPILER "${LAZY_NVCC}")
    endif()
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    set(_why "there is no CUDA compiler (nvcc)")
  else()
    set(CMAKE_CUDA_ARCHITECTURES 80)          # for the compiler test; every target sets its architectures
    enable_language(CUDA)
    if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know the C++20 option of nvcc
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    endif()
    find_package(CUDAToolkit REQUIRED)
    string(REGEX MATCH "^[0-9]+" _torch_major "${LibTorch_CUDA_VERSION}")
    if(CUDAToolkit_VERSION_MAJOR EQUAL _torch_major)
      set(LAZY_WITH_CUDA ON)
    else()
      set(_why "nvcc is ${CUDAToolkit_VERSION}, PyTorch was built with CUDA ${LibTorch_CUDA_VERSION}")
    endif()
  endif()
endif()
if(LAZY_WITH_CUDA)
  message(STATUS "CUDA kernels: built by ${CMAKE_CUDA_COMPILER} (${CUDAToolkit_VERSION})")
  if(CCACHE)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
  endif()
elseif(LAZY_CUDA STREQUAL "ON")
  message(FATAL_ERROR "LAZY_CUDA=ON: ${_why}")
else()
  message(STATUS "CUDA kernels: not built, ${_why}")
  # Libraries of an earlier build would be loaded, although they do not match the other libraries.
  file(REMOVE "${CMAKE_BINARY_DIR}/liblazy_ops_cuda.so" "${CMAKE_BINARY_DIR}/python/liblazy_ops_cuda.so")
endif()

# lazy_cuda_objects(name SOURCES ... [ARCHITECTURES ...]): CUDA sources as an object library.
function(lazy_cuda_objects name)
  cmake_parse_arguments(ARG "" "" "SOURCES;ARCHITECTURES" ${ARGN})
  if(NOT ARG_ARCHITECTURES)
    set(ARG_ARCHITECTURES ${LAZY_CUDA_ARCHITECTURES})
  endif()
  add_library(${name} OBJECT ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/include"
                                            ${CUDAToolkit_INCLUDE_DIRS})
  target_compile_options(${name} PRIVATE --expt-relaxed-constexpr)
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON CUDA_ARCHITECTURES "${ARG_ARCHITECTURES}"
                                           CUDA_STANDARD 20 CUDA_EXTENSIONS OFF)
endfunction()
