#!/usr/bin/env bash
# The blocks of the documents are what the program prints, a stale one is found, links between documents lead somewhere, each page is
# named by README.md, and none is too long to be read.
set -euo pipefail
sextant=$1
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
tools/dev/print_docs.py --check --sextant "$sextant"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
sed -E '0,/([0-9]{4}) sequences/s//9999 sequences/' README.md >"$folder/stale.md"
if tools/dev/print_docs.py --check --sextant "$sextant" "$folder/stale.md" >/dev/null; then
  echo "a stale block was not found"
  exit 1
fi

printf '```console shape\n$ sextant presets stacks\n\n%s\n```\n' 'made of other words' >"$folder/stale.md"
if tools/dev/print_docs.py --check --sextant "$sextant" "$folder/stale.md" >/dev/null; then
  echo "a line that is not printed was not found"
  exit 1
fi

broken=0
for page in README.md CHANGELOG.md docs/*.md; do
  while IFS= read -r link; do
    [[ -e $(dirname "$page")/${link%%#*} ]] || { echo "$page: no $link"; broken=1; }
  done < <(grep -oE '\]\([^)#:]+(#[^)]*)?\)' "$page" | sed -E 's/^\]\(//; s/\)$//')
done
not_named() { # README: the pages that it does not name
  for page in docs/*.md; do grep -qF "($page)" "$1" || echo "$page"; done
}
[[ -z $(not_named README.md) ]] || { echo "README.md does not name $(not_named README.md)"; broken=1; }
grep -vF '(docs/stacks.md)' README.md >"$folder/without_stacks.md"
[[ $(not_named "$folder/without_stacks.md") == docs/stacks.md ]] || { echo "a page that is not named was not found"; broken=1; }
for page in docs/*.md; do # stacks.md is printed: a reference, a list for each stack
  [[ $page == docs/stacks.md || $(wc -l <"$page") -le 400 ]] || { echo "$page has more than 400 lines: split it"; broken=1; }
done
lines=$(wc -l <README.md)
[[ $lines -le 200 ]] || { echo "README.md has $lines lines, at most 200 were promised"; broken=1; }
exit "$broken"
