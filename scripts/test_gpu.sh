#!/usr/bin/env bash
# Runs the tests of operators, recurrences and decoding steps on the GPU: the binaries of `make test` with
# LAZY_TEST_DEVICE=cuda, one process a core, since the float64 reference on the CPU takes the time. Prints how many ran.
# Usage: scripts/test_gpu.sh FOLDER [gtest filter]
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1 filter=${2:-*}
jobs=${JOBS:-$(nproc)}
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
export LAZY_TEST_DEVICE=cuda OMP_NUM_THREADS=1
status=0
for binary in attention_tests ops_tests mixer_tests serve_tests; do
  only=$filter
  [ "$binary-$filter" = "serve_tests-*" ] && only='*DeviceSteps*'  # the others are of the CPU
  pids=()
  for n in $(seq 0 $((jobs - 1))); do
    GTEST_TOTAL_SHARDS=$jobs GTEST_SHARD_INDEX=$n "$folder/tests/$binary" --gtest_brief=1 --gtest_filter="$only" \
      --gtest_output="json:$results/$binary-$n.json" > "$results/$binary-$n.log" 2>&1 &
    pids+=($!)
  done
  for n in "${!pids[@]}"; do
    wait "${pids[$n]}" || { status=1; tail -n "${LINES_SHOWN:-40}" "$results/$binary-$n.log"; }
    grep '^skipped: ' "$results/$binary-$n.log" | head -n 1 || true
  done
done
python3 - "$results" <<'PY' || status=1
import glob, json, os, sys
ran = failed = skipped = 0
names = []
for path in sorted(glob.glob(os.path.join(sys.argv[1], "*.json"))):
    for suite in json.load(open(path))["testsuites"]:
        for case in suite["testsuite"]:
            if case["result"] == "SKIPPED":
                skipped += 1
            elif case["status"] == "RUN":
                ran += 1
                if case.get("failures"):
                    failed += 1
                    names.append(f"{suite['name']}.{case['name']}")
print(f"{ran} tests ran on the GPU, {failed} failed, {skipped} skipped")
for name in names:
    print("  failed:", name)
sys.exit(failed > 0)
PY
exit $status
