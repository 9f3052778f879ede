#!/usr/bin/env bash
# The wall: the kernel library includes no Torch header and refers to no Torch symbol. Usage: wall.sh SOURCE LIBRARY
set -euo pipefail
source=$1 library=$2
failed=0
if grep -rnE '#include *[<"](torch|ATen|c10)/' "$source/include" "$source/src/attention"; then
  echo "the kernel library includes a Torch header"
  failed=1
fi
if nm -C --undefined-only "$library" 2>/dev/null | grep -E ' (at|c10|torch)::' | head -n 5 | grep .; then
  echo "$library refers to Torch"
  failed=1
fi
# Nothing points up: a layer includes only the layers below it.
layers=(core report data attention ops model generate train eval sinks repro)
declare -A below=(
  [core]="core" [report]="core report" [attention]="attention" [ops]="core attention ops" [data]="core data"
  [model]="core attention ops data model" [generate]="core ops data model generate"
  [train]="core ops data model train generate" [eval]="core ops data model generate train eval"
  [sinks]="core attention ops data model eval sinks report"
  [repro]="core ops data model generate train eval sinks report repro")
for layer in "${!below[@]}"; do
  [ -d "$source/src/$layer" ] || continue
  for other in "${layers[@]}"; do
    case " ${below[$layer]} " in *" $other "*) continue ;; esac
    if grep -rnE "#include \"$other/" "$source/src/$layer"; then
      echo "src/$layer must not include src/$other"
      failed=1
    fi
  done
done
exit $failed
