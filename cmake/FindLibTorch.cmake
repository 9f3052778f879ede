# Finds LibTorch inside an installed PyTorch wheel, without importing it and without a CUDA toolkit.
#
# The wheel's own TorchConfig.cmake stops on machines that have no CUDA toolkit, even when only the CPU
# parts are wanted; most newcomers have none. So the libraries are named here directly.
#
# Input:   LAZY_PYTHON       interpreter that has PyTorch installed (cache or environment; default .venv)
#          LAZY_TORCH_CUDA   AUTO (default), ON or OFF: link the CUDA parts too
# Targets: LibTorch::cpu     libtorch_cpu + libc10
#          LibTorch::cuda    the above + libtorch_cuda + libc10_cuda (only when LibTorch_CUDA_FOUND)
# Sets:    LibTorch_VERSION, LibTorch_DIR (the `torch` folder), LibTorch_RPATH (folders for the run path)

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
    "import importlib.util as u, os, re; d=os.path.dirname(u.find_spec('torch').origin); print(d); print(re.search(r\"__version__ = '([^']+)'\", open(os.path.join(d,'version.py')).read()).group(1))"
  OUTPUT_VARIABLE _torch_out RESULT_VARIABLE _torch_rc ERROR_VARIABLE _torch_err OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT _torch_rc EQUAL 0)
  set(LibTorch_FOUND FALSE)
  message(FATAL_ERROR
    "PyTorch was not found by '${LAZY_PYTHON}'. Run `make setup`, or set LAZY_PYTHON to an interpreter that has torch 2.11.")
endif()
string(REPLACE "\n" ";" _torch_lines "${_torch_out}")
list(GET _torch_lines 0 LibTorch_DIR)
list(GET _torch_lines 1 LibTorch_VERSION)

find_library(LibTorch_CPU_LIBRARY torch_cpu PATHS "${LibTorch_DIR}/lib" NO_DEFAULT_PATH)
find_library(LibTorch_C10_LIBRARY c10 PATHS "${LibTorch_DIR}/lib" NO_DEFAULT_PATH)

# The CUDA wheel's CPU library still needs libcudart and libcupti, which PyPI ships in sibling packages.
get_filename_component(_site "${LibTorch_DIR}" DIRECTORY)
file(GLOB _nvidia_libs LIST_DIRECTORIES TRUE "${_site}/nvidia/*/lib")
set(LibTorch_RPATH "${LibTorch_DIR}/lib" ${_nvidia_libs})

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY VERSION_VAR LibTorch_VERSION)

set(LAZY_TORCH_CUDA AUTO CACHE STRING "Link LibTorch's CUDA parts: AUTO (when a GPU driver is present), ON, OFF")
find_library(LibTorch_CUDA_LIBRARY torch_cuda PATHS "${LibTorch_DIR}/lib" NO_DEFAULT_PATH)
find_library(LibTorch_C10_CUDA_LIBRARY c10_cuda PATHS "${LibTorch_DIR}/lib" NO_DEFAULT_PATH)
set(LibTorch_CUDA_FOUND FALSE)
if(LibTorch_CUDA_LIBRARY AND LibTorch_C10_CUDA_LIBRARY)
  if(LAZY_TORCH_CUDA STREQUAL "ON" OR (LAZY_TORCH_CUDA STREQUAL "AUTO" AND EXISTS "/dev/nvidiactl"))
    set(LibTorch_CUDA_FOUND TRUE)
  endif()
elseif(LAZY_TORCH_CUDA STREQUAL "ON")
  message(FATAL_ERROR "LAZY_TORCH_CUDA=ON, but ${LibTorch_DIR}/lib holds no libtorch_cuda.so")
endif()

if(NOT TARGET LibTorch::cpu)
  add_library(LibTorch::cpu INTERFACE IMPORTED)
  target_include_directories(LibTorch::cpu SYSTEM INTERFACE
    "${LibTorch_DIR}/include" "${LibTorch_DIR}/include/torch/csrc/api/include")
  target_link_libraries(LibTorch::cpu INTERFACE "${LibTorch_CPU_LIBRARY}" "${LibTorch_C10_LIBRARY}")
  # libcudart and libcupti are found at run time through the run path; the linker need not see them.
  target_link_options(LibTorch::cpu INTERFACE "-Wl,--allow-shlib-undefined")
  if(LibTorch_CUDA_FOUND)
    add_library(LibTorch::cuda INTERFACE IMPORTED)
    target_link_libraries(LibTorch::cuda INTERFACE LibTorch::cpu
      "-Wl,--no-as-needed" "${LibTorch_CUDA_LIBRARY}" "${LibTorch_C10_CUDA_LIBRARY}" "-Wl,--as-needed")
  endif()
endif()
