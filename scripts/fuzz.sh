#!/usr/bin/env bash
# Builds the fuzz targets (clang, libFuzzer, AddressSanitizer, UndefinedBehaviorSanitizer) and runs them, two at a time.
# Usage: scripts/fuzz.sh SEEDS [TARGET...]     SEEDS: folder of seed inputs that fuzz_tests writes in its build folder
# FUZZ_SECONDS (default 5) is the time per target in seconds. FUZZ_SEED is libFuzzer's random seed, for reproducible
# runs (default 0: a different seed in every run). The corpus is kept in build-fuzz/corpus. Inputs that trigger a defect
# are written to build-fuzz/found. If clang++ -fsanitize=fuzzer does not link, the script prints a message and exits
# successfully.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/say.sh
seeds=$(realpath "$1")
shift
seconds=${FUZZ_SECONDS:-5}
probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, decltype(sizeof 0)) { return 0; }' > "$probe/probe.cc"
if ! command -v clang++ >/dev/null ||
  ! clang++ -fsanitize=fuzzer,address,undefined "$probe/probe.cc" -o "$probe/probe" 2>/dev/null; then
  echo "fuzzing SKIPPED: clang++ -fsanitize=fuzzer does not link here (Debian, Ubuntu: apt-get install clang)"
  exit 0
fi
scripts/build.sh fuzz build-fuzz
folder=build-fuzz/tests/fuzz/standalone
if [ $# -gt 0 ]; then targets=("$@"); else
  targets=()
  for file in tests/fuzz/*.cc tests/fuzz/standalone/command_line.cc; do
    name=$(basename "$file" .cc)
    case $name in *_test) ;; *) targets+=("$name") ;; esac
  done
fi
# Some targets write each input to a temporary file. Put these files on a memory file system if there is one.
if [ -w /dev/shm ]; then
  TMPDIR=$(mktemp -d /dev/shm/lazy-fuzz-XXXXXX)
  export TMPDIR
  trap 'rm -rf "$probe" "$TMPDIR"' EXIT
fi
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=0
run_one() {
  local name=$1
  mkdir -p "build-fuzz/corpus/$name" "build-fuzz/found"
  local log="build-fuzz/$name.log" dictionary=()
  [ -f "tests/fuzz/dictionaries/$name.dict" ] && dictionary=("-dict=tests/fuzz/dictionaries/$name.dict")
  local status=0
  "$folder/$name" -seed="${FUZZ_SEED:-0}" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -max_len=16384 \
    -use_value_profile=1 -print_final_stats=1 -artifact_prefix="build-fuzz/found/$name-" "${dictionary[@]}" \
    "build-fuzz/corpus/$name" "$seeds/$name" > "$log" 2>&1 || status=$?
  if [ $status -ne 0 ]; then
    echo "$name: FOUND SOMETHING (exit code $status); the end of $log:"
    grep -aE 'fuzz: |ERROR|[Ee]rror in|what\(\)|SUMMARY|runtime error|#[0-9]+ .* in lazy|Test unit written' "$log" |
      head -n 20 | sed 's/^/  /'
    echo "  to reproduce: $folder/$name FILE, where FILE is the test unit named above"
    return 1
  fi
  printf '%-16s %9s inputs, %s\n' "$name" "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" \
    "$(grep -aoE 'cov: [0-9]+ ft: [0-9]+ corp: [0-9]+' "$log" | tail -n 1)"
}
export -f run_one
export folder seconds seeds
say "fuzzing, $seconds s per target"
printf '%s\n' "${targets[@]}" | xargs -P "${FUZZ_JOBS:-2}" -I{} bash -euo pipefail -c 'run_one {}'
