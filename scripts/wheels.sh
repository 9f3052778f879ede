#!/usr/bin/env bash
# Builds the wheels of the operator and of the program into dist/. Usage: scripts/wheels.sh [operator] [cli]
# Builds are reproducible: the same commit in the same folder gives the same bytes. Time stamps are set to the time of
# the commit. Paths of the machine only affect the hashes in symbol names that nvcc generates.
# The build folders are kept in build-wheels/, so that a second run only compiles changed files.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/say.sh
stop() { printf 'wheels: %s\n' "$*" >&2; exit 1; }

most=60000000                  # maximum size of a wheel in bytes
policy=manylinux_2_34          # glibc 2.34 and GCC 11's libstdc++: Red Hat 9, Ubuntu 22.04, Debian 12
# Libraries that are excluded from the wheels because PyTorch provides them: PyTorch itself, OpenMP (a process must have
# only one copy) and the CUDA runtime.
brought=('libtorch*.so' 'libc10*.so' libgomp.so.1 'libcudart.so.*')

declare -A source=([operator]=. [cli]=packaging/cli) name=([operator]=lazy_attention [cli]=lazy_attention_cli)
[ $# -gt 0 ] || set -- operator cli
umask 022
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH CMAKE_GENERATOR=Ninja CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-$(nproc)}

tools=$PWD/.deps/wheels
if [ "$(cat "$tools/stamp" 2>/dev/null)" != "$(sha256sum < scripts/requirements-wheels.txt)" ]; then
  say "installing the tools that build wheels"
  rm -rf "$tools"
  python3 -m venv "$tools"
  "$tools/bin/pip" install --quiet --disable-pip-version-check -r scripts/requirements-wheels.txt
  sha256sum < scripts/requirements-wheels.txt > "$tools/stamp"
fi
PATH=$tools/bin:$PATH

mkdir -p dist
for what in "$@"; do
  [ -n "${source[$what]:-}" ] || stop "expected operator or cli, found $what"
  build=$PWD/build-wheels/$what
  made=$PWD/build-wheels/made/$what
  rm -rf "$made"
  mkdir -p "$made"
  log=$PWD/build-wheels/$what.log
  pip wheel --verbose --disable-pip-version-check --no-deps --no-build-isolation -w "$made/raw" \
    -C build-dir="$build" -C cmake.define.LAZY_PYTHON="${LAZY_PYTHON:-$PWD/.venv/bin/python}" \
    ${LAZY_CUDA:+-C cmake.define.LAZY_CUDA="${LAZY_CUDA^^}"} "./${source[$what]}" >"$log" 2>&1 || { tail -40 "$log" >&2; stop "building failed, the whole log is $log"; }
  auditwheel repair --plat "${policy}_$(uname -m)" "${brought[@]/#/--exclude=}" -w "$made/repaired" \
    "$made"/raw/*.whl >>"$log" 2>&1 || { tail -20 "$log" >&2; stop "auditwheel failed, the whole log is $log"; }
  wheel=$(echo "$made"/repaired/*.whl)
  bytes=$(stat -c %s "$wheel")
  [ "$bytes" -le "$most" ] || stop "$wheel: expected at most $most bytes, found $bytes"
  rm -f dist/"${name[$what]}"-*.whl
  mv "$wheel" dist/
  wheel=dist/$(basename "$wheel")
  printf '%s  %s bytes  sha256 %.16s\n' "$wheel" "$bytes" "$(sha256sum < "$wheel")"
done
