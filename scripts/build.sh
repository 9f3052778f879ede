#!/usr/bin/env bash
# Configures the build folder if necessary, and builds. Usage: scripts/build.sh PRESET FOLDER [TARGET...]
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/say.sh
preset=$1 folder=$2
shift 2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# The folder is configured only when it is new or the preset has changed. Ninja reruns CMake if a CMake file changes.
if [ ! -f "$folder/build.ninja" ] || [ "$(cat "$folder/.preset" 2>/dev/null)" != "$preset" ]; then
  say "configuring ($preset)"
  cmake --preset "$preset" -B "$folder" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
  echo "$preset" > "$folder/.preset"
fi
say building
targets=(); [ $# -gt 0 ] && targets=(--target "$@")
cmake --build "$folder" --parallel "${JOBS:-$(nproc)}" "${targets[@]}"
