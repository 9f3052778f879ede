#!/usr/bin/env bash
# The kernel library refers to no Torch symbol (rooms.py checks its includes). Usage: wall.sh LIBRARY
set -euo pipefail
if nm -C --undefined-only "$1" 2>/dev/null | grep -E ' (at|c10|torch)::' | head -n 5 | grep .; then
  echo "$1 refers to Torch"
  exit 1
fi
