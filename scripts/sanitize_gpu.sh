#!/usr/bin/env bash
# Runs compute-sanitizer (memcheck, racecheck, synccheck) on a selection of the GPU tests with short sequences. Only
# kernels of this project are instrumented. LIMIT is the time limit of the whole run; tests that have not finished by
# then are listed. racecheck does not support barriers written in PTX, which the Hopper kernels use
# (docs/dev/kernels-cuda.md). Its reports for Hopper kernels are therefore listed, but do not count as failures.
# Usage: scripts/sanitize_gpu.sh FOLDER [OUTPUT FOLDER]
#        JOBS=16 LIMIT=300 (seconds) TOOLS="memcheck racecheck synccheck" ONLY=REGEX (names)
set -uo pipefail
folder=$(realpath "$1") output=${2:-$(mktemp -d)}
jobs=${JOBS:-$(nproc)} limit=${LIMIT:-300}
mkdir -p "$output"
export LAZY_TEST_DEVICE=cuda OMP_NUM_THREADS=1
sanitizer=$(command -v compute-sanitizer || echo "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer")
if [ ! -x "$sanitizer" ]; then
  echo "sanitize_gpu.sh: expected compute-sanitizer on the PATH or in CUDA_HOME/bin, found none" >&2
  exit 2
fi

# Columns: name, test binary, gtest filter. The slowest entries come first.
lists='step-recurrences mixer_tests Mixers/GraphedStateRunnerOf.*
hopper attention_tests Hopper/Cuda.*bfloat16*_63:Hopper/Cuda.*float16_elastic_1:All/CudaKernels.One*hopper
hopper-700 attention_tests All/CudaKernels.DefaultRuns*hopper
recurrence mixer_tests RecurrenceKernels.PackedDocuments_AreIndependent:RecurrenceKernels.Results_AreBitwiseReproducible
fast-weights mixer_tests FastWeightsKernels.Results_AreBitwiseReproducible*
portable attention_tests Portable/Cuda.*bfloat16*_63:All/CudaKernels.One*portable
portable-lists attention_tests Portable/CudaLists.Compacted*/bf*entmax15_64:Portable/CudaLists.Overflowed*/f*sparsemax_128
portable-700 attention_tests All/CudaKernels.DefaultRuns*portable
plain-elastic attention_tests Plain/Cuda.*float32_elastic_63
plain-bf16 attention_tests Plain/Cuda.*bfloat16_elastic_1:Plain/Cuda.*bfloat16_softmax_1
hopper-alive attention_tests Hopper/CudaAliveSum*float16_513_*
portable-alive attention_tests Portable/CudaAliveSum*float16_513_64:Portable/CudaAliveSum*float16_513_128
plain-softpick attention_tests Plain/Cuda.*float32_softpick_1
portable-softpick attention_tests Portable/Cuda.*float16_softpick_1
plain-entmax attention_tests Plain/Cuda.*float32_entmax15_1
decode-bf16 attention_tests All/DecodeProduct.*bfloat16_elastic
decode-entmax attention_tests All/DecodeProduct.*float32_entmax15
decode attention_tests Decode.VisibleCounts_ReplaceTheNumberOfKeys
properties attention_tests Properties.NanKey_*:Properties.PackedDocuments*:Properties.RowsWithoutVisibleKeys*
norms ops_tests *Fused.RmsNorm_MatchesReference/*:*Fused.AddRmsNorm_MatchesReference/*
swiglu-rope ops_tests *Fused.Swiglu*:*Fused.Rope_MatchesReference/*
convolution ops_tests *Fused.ShortConvolution_MatchesReference/*
loss ops_tests FusedValues.LinearCrossEntropy_ReportsPerTokenResults:*Fused.LinearCrossEntropy_MatchesReference/BFloat16
hopper-rotated ops_tests AttentionOperator.RotatedAttention_MatchesSeparateRope
steps ops_tests StepGpu.*:SampleTokens.*:PinnedCopy.*:KvCacheWrite.*
fused-decode-layers ops_tests FusedDecodeLayersGpu.*'
lists=$(grep -E "^(${ONLY:-.*}) " <<< "$lists")
[ -n "$lists" ] || { echo "sanitize_gpu.sh: ONLY=$ONLY: expected a name of the list, found none" >&2; exit 2; }

check() {  # tool, name, binary, filter
  local left=$((limit - SECONDS))
  timeout -k 5 $((left > 1 ? left : 1)) \
    "$sanitizer" --tool "$1" --kernel-name kernel_substring=lazy --error-exitcode 9 --print-limit 20 \
    "$folder/tests/$3" --gtest_brief=1 --gtest_filter="$4" > "$output/$1-$2.log" 2>&1
  echo $? > "$output/$1-$2.status"
}
running=0
while read -r name binary filter; do
  for tool in ${TOOLS:-racecheck memcheck synccheck}; do
    check "$tool" "$name" "$binary" "$filter" &
    running=$((running + 1))
    if [ "$running" -ge "$jobs" ]; then
      wait -n
      running=$((running - 1))
    fi
  done
done <<< "$lists"
wait

failed=0
while read -r name _ _; do
  for tool in ${TOOLS:-racecheck memcheck synccheck}; do
    log=$output/$tool-$name.log status=$(cat "$output/$tool-$name.status")
    found=$(grep -hE 'ERROR SUMMARY|RACECHECK SUMMARY' "$log" | tail -n 1 | sed 's/^=* *//')
    case "$status" in
      0)
        verdict="clean"
        if ! grep -q '^\[  PASSED  \] [1-9]' "$log"; then
          verdict="NO TEST RAN"
          failed=1
        fi ;;
      124 | 137) verdict="not finished in time" ;;
      *)
        if [[ $tool == racecheck && $name == hopper* && -n $found ]]; then
          verdict="reports, see the log"
        else
          verdict="FAILED"
          failed=1
        fi ;;
    esac
    printf '%-10s %-20s %-24s %s\n' "$tool" "$name" "$verdict" "$found"
  done
done <<< "$lists"
exit $failed
