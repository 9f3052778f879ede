#!/usr/bin/env bash
# Prepares a machine: installs system packages, creates a virtual environment with the pinned PyTorch version, and
# downloads the source of SentencePiece.
# Usage: scripts/setup.sh [python|test]
#   python  also installs the packages that `import torch`, `import lazy_attention.hf` and the examples need
#   test    also installs the Python packages that the tests use as references, and torchtitan into .deps
# Steps that are already done are skipped. LAZY_PYTHON names a Python interpreter with PyTorch to use instead of .venv.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/say.sh
stop() { printf 'setup: %s\n' "$*" >&2; exit 1; }
case "${1:-}" in
  '' | python | test) ;;
  *) stop "expected python, test or no argument, found $1" ;;
esac

# 1. System packages.
mapfile -t packages < <(grep -vE '^[[:space:]]*(#|$)' scripts/packages.txt)
if command -v dpkg-query >/dev/null; then
  missing=()
  for package in "${packages[@]}"; do
    status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$status" = installed ] || missing+=("$package")
  done
  if [ ${#missing[@]} -gt 0 ]; then
    install="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
    if [ "$(id -u)" = 0 ]; then
      as_root=(env)
    elif command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
      as_root=(sudo env)
    else
      stop "these packages are missing, and neither root nor sudo is available. Have an administrator run:
  $install"
    fi
    say "installing ${#missing[@]} system packages: ${missing[*]}"
    "${as_root[@]}" DEBIAN_FRONTEND=noninteractive apt-get update -qq
    "${as_root[@]}" DEBIAN_FRONTEND=noninteractive \
      apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  fi
else
  say "this system has no dpkg: make sure that the following packages are installed: ${packages[*]}"
fi

# 2. PyTorch.
case "$(uname -m)" in
  x86_64 | aarch64) ;;
  *) stop "PyTorch 2.11.0 has no wheel for $(uname -m)" ;;
esac
mkdir -p .deps
stamp() { sha256sum "$1" | cut -d' ' -f1; }
# Installs packages into .venv. pip stores its downloads in .venv/tmp, because /tmp may be a small file system in memory,
# and keeps no copy of them in its cache.
pip_install() {
  local status=0
  rm -rf .venv/tmp && mkdir .venv/tmp
  TMPDIR=$PWD/.venv/tmp "$python" -m pip install --quiet --disable-pip-version-check --no-cache-dir "$@" || status=$?
  rm -rf .venv/tmp
  return "$status"
}
# need_space SIZE: stops if the file system of .venv has too little space for .venv to grow to SIZE MiB. In addition to
# the packages, it must have space for pip's downloads, which are smaller than the packages: at most 2300 MiB.
need_space() {
  local present free growth downloads
  present=$(du -sm .venv/ | cut -f1)
  free=$(df -Pm .venv/ | awk 'NR == 2 { print $4 }')
  growth=$(($1 - present))
  [ "$growth" -gt 0 ] || return 0
  downloads=$((growth * 55 / 100 < 2300 ? growth * 55 / 100 : 2300))
  [ "$free" -ge $((growth + downloads)) ] && return 0
  stop "$PWD/.venv: installing the packages needs $(gib $((growth + downloads))) of free space, found $(gib "$free");" \
    "free some space, or set LAZY_PYTHON to an interpreter that has them"
}
gib() { awk -v mib="$1" 'BEGIN { printf "%.1f GiB", mib / 1024 }'; }
if [ -n "${LAZY_PYTHON:-}" ]; then
  python=$LAZY_PYTHON
  "$python" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' ||
    stop "LAZY_PYTHON=$LAZY_PYTHON has no PyTorch; install torch 2.11.0 there, or unset LAZY_PYTHON"
else
  python=.venv/bin/python
  [ -x "$python" ] || { say "creating .venv"; python3 -m venv .venv; }
  # PyTorch's CUDA libraries are required on machines with a GPU, and by `import torch`, which some tests use.
  wanted=""
  [ -e /dev/nvidiactl ] && wanted=scripts/requirements.txt
  [ "${1:-}" = test ] && wanted=scripts/requirements-test.txt
  full=.venv/full.stamp
  # "python" has a separate stamp file. It is already satisfied if the packages of "test" are installed, because they
  # include the packages of "python" (checked by tests/repository/test_setup.py).
  [ "${1:-}" = python ] && wanted=scripts/requirements-python.txt full=.venv/python.stamp
  if [ "${1:-}" = python ] && [ "$(cat .venv/full.stamp 2>/dev/null)" = "$(stamp scripts/requirements-test.txt)" ]; then
    wanted=""
  fi
  if [ -n "$wanted" ] && [ "$(cat "$full" 2>/dev/null)" = "$(stamp "$wanted")" ]; then wanted=""; fi
  base=""
  [ "$(cat .venv/base.stamp 2>/dev/null)" = "$(stamp scripts/requirements.txt)" ] || base=yes
  # Measured sizes of .venv with PyTorch 2.11.0 on x86-64: 1420 MiB with PyTorch and matplotlib, 5416 MiB with the packages of
  # the tests.
  if [ -n "$wanted" ]; then need_space 5450; elif [ -n "$base" ]; then need_space 1455; fi
  if [ -n "$base" ]; then
    say "installing PyTorch and matplotlib into .venv (a download of 0.6 GB, 1.4 GB on disk)"
    pip_install --no-deps -r scripts/requirements.txt
    stamp scripts/requirements.txt > .venv/base.stamp
  fi
  if [ -n "$wanted" ]; then
    what="PyTorch's CUDA libraries"
    [ "${1:-}" = test ] && what="the packages that the tests compare with"
    [ "${1:-}" = python ] && what="transformers and the packages that are needed to import PyTorch"
    say "installing $what (a download of 2.3 GB, 4.3 GB on disk)"
    pip_install -r "$wanted"
    stamp "$wanted" > "$full"
  fi
fi

# 3. torchtitan, in a separate folder: only its tests use it, and its dependencies must not replace other packages. An
# interpreter of LAZY_PYTHON is used with its own torchtitan, if it has one.
titan=.deps/torchtitan
if [ "${1:-}" = test ] && [ -z "${LAZY_PYTHON:-}" ] &&
  [ "$(cat "$titan/installed.stamp" 2>/dev/null)" != "$(stamp scripts/requirements-torchtitan.txt)" ]; then
  say "installing torchtitan into $titan (34 MB)"
  rm -rf "$titan" && mkdir "$titan"
  pip_install --no-deps --target "$titan" -r scripts/requirements-torchtitan.txt
  stamp scripts/requirements-torchtitan.txt > "$titan/installed.stamp"
fi

# 4. SentencePiece, built from source: Debian's shared library and LibTorch overwrite each other's command-line flags if
# they are linked into the same program.
sentencepiece=.deps/sentencepiece-0.2.0
sentencepiece_hash=a52c19171daaf2e697dc6cbe67684e0fa341b1248966f6aebb541de654d15843
if [ ! -f "$sentencepiece/sentencepiece/CMakeLists.txt" ]; then
  say "fetching SentencePiece's source"
  fetcher=$python
  "$fetcher" -m pip --version >/dev/null 2>&1 || fetcher=python3
  "$fetcher" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: -d .deps \
    sentencepiece==0.2.0
  echo "$sentencepiece_hash  $sentencepiece.tar.gz" | sha256sum --check --quiet ||
    stop "$sentencepiece.tar.gz does not have the pinned checksum"
  rm -rf "$sentencepiece.tmp" && mkdir "$sentencepiece.tmp"
  tar -xzf "$sentencepiece.tar.gz" -C "$sentencepiece.tmp" --strip-components=1
  mv "$sentencepiece.tmp" "$sentencepiece"
  rm "$sentencepiece.tar.gz"
fi
