# Finds LibTorch inside an installed PyTorch wheel, without importing it and without a CUDA toolkit.
#
# TorchConfig.cmake of a CUDA wheel fails on machines without a CUDA toolkit, even if only the CPU libraries are needed.
# Therefore this file finds the libraries directly.
#
# Input:   LAZY_PYTHON       interpreter that has PyTorch installed (cache or environment; default .venv)
# Targets: LibTorch::cpu       libtorch_cpu + libc10
#          LibTorch::c10_cuda  streams and devices (only if LibTorch_CUDA_VERSION is not empty). libtorch_cuda is not
#                              linked; it is loaded at run time if there is a GPU (src/ops/load_cuda.h)
# Sets:    LibTorch_VERSION, LibTorch_DIR (the `torch` folder), LibTorch_RPATH (folders for the run path),
#          LibTorch_CUDA_VERSION (CUDA version with which the wheel was built, such as 13.0; empty for a CPU wheel)

if(NOT LAZY_PYTHON)
  if(DEFINED ENV{LAZY_PYTHON} AND NOT "$ENV{LAZY_PYTHON}" STREQUAL "")
    set(LAZY_PYTHON "$ENV{LAZY_PYTHON}" CACHE FILEPATH "Python interpreter that has PyTorch")
  elseif(EXISTS "${CMAKE_SOURCE_DIR}/.venv/bin/python")
    set(LAZY_PYTHON "${CMAKE_SOURCE_DIR}/.venv/bin/python" CACHE FILEPATH "Python interpreter that has PyTorch")
  else()
    set(LAZY_PYTHON "python3" CACHE FILEPATH "Python interpreter that has PyTorch")
  endif()
endif()

execute_process(
  COMMAND "${LAZY_PYTHON}" -c
    "import importlib.util as u, os, re; d=os.path.dirname(u.find_spec('torch').origin); print(d); \
print(re.search(r\"__version__ = '([^']+)'\", t:=open(os.path.join(d,'version.py')).read()).group(1)); \
c=re.search(r\"^cuda.* = '([^']+)'\", t, re.M); print(c.group(1) if c else '')"
  OUTPUT_VARIABLE _torch_out RESULT_VARIABLE _torch_rc ERROR_VARIABLE _torch_err OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT _torch_rc EQUAL 0)
  set(LibTorch_FOUND FALSE)
  message(FATAL_ERROR
    "PyTorch was not found by '${LAZY_PYTHON}'. "
    "Run `make setup`, or set LAZY_PYTHON to an interpreter that has torch 2.11.")
endif()
string(REPLACE "\n" ";" _torch_lines "${_torch_out}")
list(GET _torch_lines 0 LibTorch_DIR)
list(GET _torch_lines 1 LibTorch_VERSION)
list(APPEND _torch_lines "")                # CMake drops an empty last line
list(GET _torch_lines 2 LibTorch_CUDA_VERSION)

find_library(LibTorch_CPU_LIBRARY torch_cpu PATHS "${LibTorch_DIR}/lib" NO_DEFAULT_PATH)
find_library(LibTorch_C10_LIBRARY c10 PATHS "${LibTorch_DIR}/lib" NO_DEFAULT_PATH)

# libtorch_cpu of a CUDA wheel needs libcudart and libcupti, which are in separate PyPI packages.
get_filename_component(_site "${LibTorch_DIR}" DIRECTORY)
file(GLOB _nvidia_libs LIST_DIRECTORIES TRUE "${_site}/nvidia/*/lib")
set(LibTorch_RPATH "${LibTorch_DIR}/lib" ${_nvidia_libs})

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY VERSION_VAR LibTorch_VERSION)

find_library(LibTorch_C10_CUDA_LIBRARY c10_cuda PATHS "${LibTorch_DIR}/lib" NO_DEFAULT_PATH)

if(NOT TARGET LibTorch::cpu)
  add_library(LibTorch::cpu INTERFACE IMPORTED)
  target_include_directories(LibTorch::cpu SYSTEM INTERFACE
    "${LibTorch_DIR}/include" "${LibTorch_DIR}/include/torch/csrc/api/include")
  target_link_libraries(LibTorch::cpu INTERFACE "${LibTorch_CPU_LIBRARY}" "${LibTorch_C10_LIBRARY}")
  # libcudart and libcupti are found at run time through the run path. They need not be known to the linker.
  target_link_options(LibTorch::cpu INTERFACE "-Wl,--allow-shlib-undefined")
  if(LibTorch_CUDA_VERSION AND LibTorch_C10_CUDA_LIBRARY)
    add_library(LibTorch::c10_cuda INTERFACE IMPORTED)
    target_link_libraries(LibTorch::c10_cuda INTERFACE LibTorch::cpu "${LibTorch_C10_CUDA_LIBRARY}")
  endif()
endif()
