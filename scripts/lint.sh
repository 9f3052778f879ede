#!/usr/bin/env bash
# Checks formatting, Python lint and spelling of all files, and runs clang-tidy on changed files. Fails if a check
# fails. Usage: scripts/lint.sh check           clang-format, ruff, codespell, lines of at most 120 columns, wording
#        scripts/lint.sh format          formats in place
#        scripts/lint.sh tidy FOLDER     clang-tidy over the sources that differ from LAZY_BASE (default: HEAD~1);
#                                        FOLDER is a build folder with compile_commands.json
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/say.sh

# The tools are installed with pinned versions in a separate virtual environment.
tools=$PWD/.deps/lint
wanted=$(sha256sum scripts/requirements-lint.txt | cut -d' ' -f1)
if [ "$(cat "$tools/stamp" 2>/dev/null)" != "$wanted" ]; then
  say "installing the lint tools"
  python3 -m venv "$tools"
  "$tools/bin/pip" install --quiet --disable-pip-version-check -r scripts/requirements-lint.txt
  echo "$wanted" > "$tools/stamp"
fi
PATH=$tools/bin:$PATH

native() { git ls-files -z '*.cc' '*.h' '*.cu' '*.cuh'; }
python_files() { git ls-files -z '*.py'; }

case "${1:-check}" in
  check)
    native | xargs -0 -n 64 -P "${JOBS:-$(nproc)}" clang-format --dry-run --Werror
    # clang-format does not break raw strings.
    if LC_ALL=C.UTF-8 git grep -nE '^.{121}' -- '*.cc' '*.h' '*.cu' '*.cuh'; then
      echo "lint: these lines are wider than 120 columns" >&2
      exit 1
    fi
    python_files | xargs -0 ruff format --check --quiet --diff
    python_files | xargs -0 ruff check --quiet
    python3 scripts/lint_prose.py --check
    git ls-files -z '*.cc' '*.h' '*.cu' '*.cuh' '*.py' '*.md' '*.sh' '*.toml' '*.cmake' '*CMakeLists.txt' |
      xargs -0 codespell
    echo "lint: formatting, Python and spelling are in order"
    ;;
  format)
    native | xargs -0 -n 64 -P "${JOBS:-$(nproc)}" clang-format -i
    python_files | xargs -0 ruff format --quiet
    python_files | xargs -0 ruff check --quiet --fix
    ;;
  tidy)
    folder=${2:-build}
    base=${LAZY_BASE:-HEAD~1}
    git rev-parse --quiet --verify "$base" >/dev/null ||
      { echo "lint: no commit $base to compare with, nothing is tidied"; exit 0; }
    # clang cannot read GCC's precompiled headers. Use a copy of the compile commands without them.
    mkdir -p "$folder/lint"
    sed -E 's/-include [^ ]*cmake_pch[^ ]*//g; s/-fpch-preprocess//g; s/-Winvalid-pch//g' \
      "$folder/compile_commands.json" > "$folder/lint/compile_commands.json"
    git diff -z --name-only --diff-filter=AMR "$base" -- 'src/*.cc' 'apps/*.cc' |
      xargs -0 -r -P "${JOBS:-$(nproc)}" -n 1 clang-tidy --quiet -p "$folder/lint" \
        --extra-arg=-Wno-unknown-warning-option --extra-arg=-isystem"$(c++ -print-file-name=include)"
    ;;
  *) echo "lint: expected check, format or tidy, received $1" >&2; exit 2 ;;
esac
