#!/usr/bin/env bash
# Runs the tests of a build folder and names what was skipped, with the reason.
# Usage: scripts/test.sh FOLDER [ctest options]
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1
shift
if [ -z "${LAZY_TEST_DATA:-}" ]; then
  unset LAZY_TEST_DATA
  echo "LAZY_TEST_DATA is unset: tests that need real corpora and tokenizers will be skipped"
else
  LAZY_TEST_DATA=$(realpath "$LAZY_TEST_DATA")
  export LAZY_TEST_DATA
fi
# Tests run side by side: threads that wait for work must not spin on the cores that others need.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0:detect_odr_violation=0}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:halt_on_error=1}
status=0
ctest --test-dir "$folder" --output-on-failure --parallel "${JOBS:-$(nproc)}" --output-junit tests.xml "$@" || status=$?
python3 - "$folder/tests.xml" <<'PY'
import re, sys, xml.etree.ElementTree as tree
skipped = []
for case in tree.parse(sys.argv[1]).getroot().iter("testcase"):
    if case.get("status") in ("notrun", "disabled") or case.find("skipped") is not None:
        output = case.findtext("system-out") or ""
        reasons = [line.strip() for line in output.splitlines() if "skip" in line.lower() and "[" not in line]
        after = re.search(r"Skipped\n(.+)", output)
        skipped.append((case.get("name"), after.group(1) if after else (reasons or ["no reason printed"])[0]))
if skipped:
    print(f"\nSkipped ({len(skipped)}):")
    for name, reason in skipped:
        print(f"  {name}: {reason}")
PY
exit $status
