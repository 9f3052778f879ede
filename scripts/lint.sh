#!/usr/bin/env bash
# clang-tidy over the sources that the build folder compiles. Usage: scripts/lint.sh FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
command -v clang-tidy >/dev/null || { echo "lint: clang-tidy is not installed (apt-get install clang-tidy)" >&2; exit 1; }
# clang cannot read GCC's precompiled headers: strip them from a copy of the compile commands.
mkdir -p "$1/lint"
sed -E 's/-include [^ ]*cmake_pch[^ ]*//g; s/-fpch-preprocess//g; s/-Winvalid-pch//g' "$1/compile_commands.json" > "$1/lint/compile_commands.json"
git ls-files 'src/core/*.cc' 'src/data/*.cc' 'src/report/*.cc' 'src/attention/*.cc' |
  xargs -P "${JOBS:-$(nproc)}" -n 4 clang-tidy --quiet -p "$1/lint"
