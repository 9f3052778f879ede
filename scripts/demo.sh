#!/usr/bin/env bash
# Demonstrates the complete workflow on real text: trains a tokenizer, prepares the corpus, trains a Lazy model and a
# softmax model on the same tokens, evaluates both, measures their attention sinks, generates samples, and writes a
# report. The output of every stage is kept, so that an interrupted demo continues where it stopped.
# The environment variable LAZY_DEMO_TEXT names a file or folder with the text. The default is the Perl manual (Debian
# package perl-doc).
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/say.sh
out=build/demo
lazy=build/lazy

if [ -n "${LAZY_DEMO_TEXT:-}" ]; then
  text=("$LAZY_DEMO_TEXT")
  [ -e "${text[0]}" ] || { echo "demo: LAZY_DEMO_TEXT: ${text[0]} does not exist" >&2; exit 2; }
else
  mapfile -t text < <(dpkg -L perl-doc 2>/dev/null | grep '/pod/.*\.pod$' | xargs -r -n1 dirname | sort -u)
  if [ ${#text[@]} -eq 0 ]; then
    echo "demo: the package perl-doc is not installed; set LAZY_DEMO_TEXT to a file or folder of text" >&2
    exit 2
  fi
fi
start=$SECONDS
mkdir -p "$out"

# If the text or a configuration has changed, start over. Otherwise the results would mix two different settings.
key=$( (printf '%s\n' "${text[@]}"; cat configs/demo.toml) | sha256sum | cut -d' ' -f1)
if [ "$(cat "$out/key" 2>/dev/null)" != "$key" ]; then
  rm -rf "$out/corpus" "$out/lazy" "$out/softmax" "$out/report.html"
  echo "$key" > "$out/key"
fi

if [ ! -f "$out/corpus/corpus.json" ]; then
  say "1/5 tokenizer and shards from ${text[*]}"
  "$lazy" data prepare "${text[@]}" --output "$out/corpus" --train-tokenizer 4096 --max-document 16kb --validation 0.03
fi

for kind in lazy softmax; do
  if [ ! -f "$out/$kind/model/config.json" ]; then
    case $kind in
      lazy) say "2/5 training Lazy Attention" ;;
      *) say "3/5 training its softmax twin on the same tokens" ;;
    esac
    "$lazy" train "configs/demo.toml+$kind" $([ -d "$out/$kind/checkpoints" ] && echo --resume)
  fi
done

say "4/5 evaluation, sinks, samples"
for kind in softmax lazy; do
  run=$out/$kind
  # The attention maps of both models show the same heads: the heads with the strongest sinks in the softmax model.
  maps=$([ $kind = softmax ] && echo auto || echo "$out/softmax/sinks.json")
  [ -f "$run/eval.json" ] ||
    "$lazy" eval "$run/model" --tasks heldout --corpus "$out/corpus" --bos --output "$run/eval.json"
  [ -f "$run/sinks.json" ] || "$lazy" sinks "$run/model" --corpus "$out/corpus" --bos --maps "$maps" --json "$run/sinks.json"
  [ -f "$run/samples.json" ] ||
    "$lazy" generate "$run/model" \
      --prompt "The function returns" --prompt "To open a file, " --prompt "If you want to" \
      --max-tokens 120 --temperature 0.7 --top-p 0.9 --seed 1 --json "$run/samples.json" > /dev/null
done

say "5/5 report"
"$lazy" report "$out/lazy" "$out/softmax" --output "$out/report.html"
printf '\nThe report: %s\n(%s minutes; a second `make demo` is quick, `rm -r %s` starts over)\n' \
  "$PWD/$out/report.html" "$(( (SECONDS - start + 30) / 60 ))" "$out"
