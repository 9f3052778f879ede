#!/usr/bin/env bash
# Runs the tests of a build folder. Then lists the skipped tests with reasons, the failed tests and the slowest tests.
# Usage: scripts/test.sh FOLDER [LABEL...] [-- ctest options]
#   LABEL: unit, slow, data, real (default: all). JOBS: number of parallel processes (default: the number of cores).
#   One binary: scripts/test.sh build -- -R model_tests
#   One test:   build/tests/model_tests --gtest_filter='Suite.Name'
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1
shift
labels=""
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  labels+=${labels:+|}$1
  shift
done
[ $# -gt 0 ] && shift
if [ -z "${LAZY_TEST_DATA:-}" ]; then
  unset LAZY_TEST_DATA
  echo "LAZY_TEST_DATA is unset: tests that need real corpora and tokenizers will be skipped"
else
  LAZY_TEST_DATA=$(realpath "$LAZY_TEST_DATA")
  export LAZY_TEST_DATA
fi
# Several test processes run in parallel. Idle OpenMP threads must not spin on the cores that other processes need.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0:detect_odr_violation=0}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:halt_on_error=1}
rm -rf "$folder/test-results"
mkdir -p "$folder/test-results"
status=0
ctest --test-dir "$folder" --output-on-failure --parallel "${JOBS:-$(nproc)}" ${labels:+-L "^($labels)\$"} \
  --no-tests=error --output-junit test-results/ctest.junit "$@" || status=$?
python3 scripts/test_summary.py "$folder/test-results"
exit $status
