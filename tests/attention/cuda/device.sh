#!/bin/bash
# Builds and runs the CUDA tests without LibTorch. It needs only nvcc, a C++ compiler and the sources of GoogleTest.
#   tests/attention/cuda/device.sh [gtest filter]      GTEST_SOURCE=/usr/src/googletest  ARCH=90a  JOBS=16
# Runs one process per CPU core, because most of the time is spent in the float64 reference on the CPU.
set -e
root=$(cd "$(dirname "$0")/../../.." && pwd)
build=${BUILD:-/tmp/lazy-cuda}
gtest=${GTEST_SOURCE:-/usr/src/googletest}
jobs=${JOBS:-$(nproc)}
arch=${ARCH:-90a}    # a single architecture builds fast, and the ptxas report (log) is for it
mkdir -p "$build"
flags="-std=c++20 -O3 -I$root/include -I$root/src -I$root/tests -I$gtest/googletest/include -I$gtest/googletest"
{
  printf 'all: %s %s\n' "$build/cuda_tests" "$build/liblazy_cuda.so"
  objects=
  add() {  # source, command
    object=$build/$(echo "${1#"$root"/}" | tr '/' '_').o
    objects="$objects $object"
    printf '%s: %s\n\t%s -MD -MF %s.d -c %s -o %s\n-include %s.d\n' \
      "$object" "$1" "$2" "$object" "$1" "$object" "$object"
  }
  nvcc="nvcc -Xptxas -v -gencode arch=compute_$arch,code=sm_$arch --expt-relaxed-constexpr -Xcompiler -fPIC"
  for f in "$root"/src/attention/cuda/*.cu; do
    add "$f" "$nvcc ${NVCC_FLAGS} $flags"
  done
  for f in "$root"/tests/attention/cuda/{,standalone/}*.cc "$root"/src/attention/reference/*.cc \
    "$root"/src/attention/kernel_table.cc "$root"/tests/attention/{case,compare,plain,device}.cc \
    "$gtest"/googletest/src/gtest-all.cc; do
    add "$f" "g++ -Wall -fPIC -I${CUDA_HOME:-/usr/local/cuda}/include $flags -I$root/tests/attention"
  done
  add "$gtest/googletest/src/gtest_main.cc" "g++ $flags"
  printf '%s: %s\n\tnvcc -o $@ $^ -lpthread\n' "$build/cuda_tests" "$objects"
  printf '%s: %s\n\tnvcc -shared -o $@ $^\n' "$build/liblazy_cuda.so" \
    "$(echo "$objects" | tr ' ' '\n' | grep -E 'src_attention_cuda|kernel_table|library.cc' | tr '\n' ' ')"
} > "$build/Makefile"
make -s -j "$jobs" -f "$build/Makefile" > "$build/log" 2>&1 || { grep -v 'ptxas info' "$build/log" | head -60; exit 1; }
grep -E 'spill (stores|loads)' "$build/log" | grep -v ' 0 bytes spill stores' | sort | uniq -c || true
pids=
for n in $(seq 0 $((jobs - 1))); do
  GTEST_TOTAL_SHARDS=$jobs GTEST_SHARD_INDEX=$n "$build/cuda_tests" --gtest_filter="${1:-*}" --gtest_brief=1 \
    > "$build/shard$n" 2>&1 &
  pids="$pids $!"
done
status=0
for pid in $pids; do wait "$pid" || status=1; done
shown="^\[  (PASSED|FAILED|SKIPPED)|Failure|Which|Actual|Expected|vs|the worst|case.cc|exception|error|largest|square"
shown="$shown|found|rounding"
grep -hE "$shown" "$build"/shard* | grep -v '^\[  PASSED  \] 0' | head -${LINES_SHOWN:-80}
exit $status
