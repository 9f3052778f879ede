#!/usr/bin/env bash
# Builds the documentation site in build/site and checks its links. Usage: scripts/docs.sh [serve]
#        serve    serves the site at http://127.0.0.1:8000 and rebuilds it when a file changes
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/say.sh
tools=$PWD/.deps/docs
wanted=$(sha256sum scripts/requirements-docs.txt | cut -d' ' -f1)
if [ "$(cat "$tools/stamp" 2>/dev/null)" != "$wanted" ]; then
  say "installing the documentation's tools"
  python3 -m venv "$tools"
  "$tools/bin/pip" install --quiet --disable-pip-version-check -r scripts/requirements-docs.txt
  echo "$wanted" > "$tools/stamp"
fi
export NO_MKDOCS_2_WARNING=1
if [ "${1:-}" = serve ]; then exec "$tools/bin/mkdocs" serve; fi
# MkDocs warns about broken links and anchors; --strict turns warnings into errors. Do not add --quiet: it suppresses
# the warnings, so that --strict finds none.
"$tools/bin/mkdocs" build --strict
say "checking the links of build/site"
# LinkChecker drops root privileges by becoming the user `nobody`, which may have no permission to read this folder.
# Replacing drop_privileges by bool disables that.
"$tools/bin/python" -c 'from linkcheck.command import linkchecker as l; l.drop_privileges = bool; l.linkchecker()' \
  --config scripts/linkchecker.ini --no-status build/site/index.html
say "the site is build/site/index.html"
