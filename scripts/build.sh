#!/usr/bin/env bash
# Configures once and builds. Usage: scripts/build.sh PRESET FOLDER [TARGET...]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1 folder=$2
shift 2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Configuring again is only needed when the preset changes; Ninja reruns CMake when its files do.
if [ ! -f "$folder/build.ninja" ] || [ "$(cat "$folder/.preset" 2>/dev/null)" != "$preset" ]; then
  printf '\033[1m==> configuring (%s)\033[0m\n' "$preset" >&2
  cmake --preset "$preset" -B "$folder" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
  echo "$preset" > "$folder/.preset"
fi
printf '\033[1m==> building\033[0m\n' >&2
targets=(); [ $# -gt 0 ] && targets=(--target "$@")
cmake --build "$folder" --parallel "${JOBS:-$(nproc)}" "${targets[@]}"
