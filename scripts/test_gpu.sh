#!/usr/bin/env bash
# Runs the tests of operators, recurrences and decode steps on the GPU: the test binaries of `make test` with
# LAZY_TEST_DEVICE=cuda. One process per core is started, because the float64 reference on the CPU takes most of the
# time. For each binary the script prints the number of tests, the failed tests, and the tests that did not finish
# within LIMIT seconds.
# Usage: scripts/test_gpu.sh FOLDER [gtest filter]
# Environment: JOBS=16, LIMIT=3600 (seconds), LINES_SHOWN=40 (number of output lines shown for a failed test)
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1 filter=${2:-*}
jobs=${JOBS:-$(nproc)} limit=${LIMIT:-3600}
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
export LAZY_TEST_DEVICE=cuda OMP_NUM_THREADS=1
status=0
for binary in attention_tests ops_tests mixer_tests serve_tests; do
  only=$filter
  [ "$binary-$filter" = "serve_tests-*" ] && only='*DecodeRunner*:*Preemption*'  # other serve_tests run on the CPU
  began=$SECONDS left=$((limit - SECONDS))
  for n in $(seq 0 $((jobs - 1))); do
    GTEST_TOTAL_SHARDS=$jobs GTEST_SHARD_INDEX=$n timeout $((left > 1 ? left : 1)) "$folder/tests/$binary" \
      --gtest_filter="$only" > "$results/$binary-$n.log" 2>&1 || echo "status $?" >> "$results/$binary-$n.log" &
  done
  wait
  python3 - "$binary" $((SECONDS - began)) "${LINES_SHOWN:-40}" "$results/$binary"-*.log <<'PY' || status=1
import re, sys

binary, seconds, shown = sys.argv[1], sys.argv[2], int(sys.argv[3])
ran = failed = skipped = broken = 0
said = set()
for path in sys.argv[4:]:
    running, lines, before = None, [], failed
    for line in open(path, errors="replace"):
        line = line.rstrip()
        mark = re.match(r"\[ +(RUN|OK|FAILED|SKIPPED) +\] (\S+?)(,| \(|$)", line)
        if line.startswith("skipped: ") and line not in said:
            said.add(line)
            print(line)
        if not mark or (mark[1] != "RUN" and mark[2] != running):  # gtest repeats the failed tests at the end
            lines.append(line)
            continue
        if mark[1] == "RUN":
            running, lines = mark[2], []
            continue
        ran += mark[1] != "SKIPPED"
        skipped += mark[1] == "SKIPPED"
        failed += mark[1] == "FAILED"
        if mark[1] == "FAILED":
            print("\n".join(lines[:shown]), f"\nfailed: {running}")
        running, lines = None, []
    if running or (failed == before and any(re.fullmatch(r"status \d+", line) for line in lines)):
        broken += 1
        print("\n".join(lines[-shown:]), f"\ndid not end: {running or path}")
counts = f"{ran} tests ran on the GPU, {failed} failed, {skipped} skipped, {broken} processes broke"
print(f"{binary}: {counts}; {seconds} s", flush=True)
sys.exit(failed + broken > 0)
PY
done
exit $status
