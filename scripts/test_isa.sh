#!/usr/bin/env bash
# Runs the numerical tests with the instruction sets of older processors: PyTorch's kernels, MKL and oneDNN are
# restricted to AVX2, then to SSE. Usage: scripts/test_isa.sh FOLDER [ctest options]
# This detects error bounds that only hold for the rounding of one instruction set.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/say.sh
folder=$1
shift
status=0
while read -r aten mkl onednn; do
  say "ATEN_CPU_CAPABILITY=$aten MKL_ENABLE_INSTRUCTIONS=$mkl ONEDNN_MAX_CPU_ISA=$onednn"
  ATEN_CPU_CAPABILITY=$aten MKL_ENABLE_INSTRUCTIONS=$mkl ONEDNN_MAX_CPU_ISA=$onednn \
    scripts/test.sh "$folder" unit slow -- -R '^(ops|model|mixer|sinks|train|eval)_tests' "$@" || status=$?
done <<'LEVELS'
avx2 AVX2 AVX2
default SSE4_2 SSE41
LEVELS
exit $status
