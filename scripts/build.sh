#!/usr/bin/env bash
# Configures the build folder if necessary, and builds. Usage: scripts/build.sh PRESET FOLDER [TARGET...]
# LAZY_CUDA says whether the CUDA kernels are part of the build: on, off, or auto (if there is an nvcc of PyTorch's major
# version). If it is not set, an existing folder keeps its setting, and a new one has auto.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/say.sh
preset=$1 folder=$2
shift 2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
case "${LAZY_CUDA:=}" in
  on | ON | off | OFF | auto | AUTO) cuda=${LAZY_CUDA^^} ;;
  '') cuda=$(sed -n 's/^LAZY_CUDA:[A-Z]*=//p' "$folder/CMakeCache.txt" 2>/dev/null || true) ;;
  *) echo "build: LAZY_CUDA: expected on, off or auto, found $LAZY_CUDA" >&2; exit 2 ;;
esac
# The folder is configured only when it is new or a setting has changed. Ninja reruns CMake if a CMake file changes.
settings="$preset ${cuda:=AUTO}"
if [ ! -f "$folder/build.ninja" ] || [ "$(cat "$folder/.settings" 2>/dev/null)" != "$settings" ]; then
  say "configuring ($preset, CUDA kernels: ${cuda,,})"
  cmake --preset "$preset" -B "$folder" -DLAZY_CUDA="$cuda" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
  echo "$settings" > "$folder/.settings"
fi
say building
targets=(); [ $# -gt 0 ] && targets=(--target "$@")
cmake --build "$folder" --parallel "${JOBS:-$(nproc)}" "${targets[@]}"
