#!/usr/bin/env bash
# The two commands of docs/exporting.md from an empty machine to an accepted job: the first installs what the tests of this folder are
# run with, the second is run as it stands there, with the python of SEXTANT_EXPORT_PYTHON.
#   two_commands.sh SEXTANT SOURCE_FOLDER      status 77: skipped, with the reason
set -euo pipefail
sextant=$(readlink -f "$1")
page=$2/docs/exporting.md
fail() {
  echo "FAILED: $*"
  exit 1
}
mapfile -t installs < <(sed -n 's/^    pip install sextant-\*\.whl //p' "$page")
mapfile -t exports < <(grep -E '^    sextant export --model .* --check$' "$page")
[[ ${#installs[@]} -eq 2 && ${#exports[@]} -eq 2 ]] || fail "$page has ${#installs[@]} and ${#exports[@]} of such commands, expected two and two"
read -ra packages <<<"${installs[*]}"
for package in "${packages[@]}"; do
  grep -qE "^$package($|[=;])" "$2/tests/exports/requirements.txt" || fail "$page installs $package, requirements.txt another"
done
[[ -n ${SEXTANT_EXPORT_PYTHON:-} ]] || {
  echo "SKIPPED: SEXTANT_EXPORT_PYTHON names no python with the packages of tests/exports/requirements.txt"
  exit 77
}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
ln -s "$sextant" "$folder/sextant"
cd "$folder"
export PATH=$folder:$PATH
for command in "${exports[@]}"; do
  target=$(grep -oE -- '--to [a-z-]+' <<<"$command" | cut -d' ' -f2)
  answer=$(SEXTANT_PYTHON=$SEXTANT_EXPORT_PYTHON bash -c "$command" 2>&1) || fail "$command"$'\n'"$answer"
  [[ $(tr '\n' ' ' <<<"$answer") == *"own parser accepts it"* ]] || fail "$command: no parser was asked"$'\n'"$answer"
  # The controls: a value that is not the plan's is seen, and a python that has none is no acceptance.
  sed -i 's/"micro_batch": [0-9]*/"micro_batch": 64/' job/plan.json
  if changed=$("$SEXTANT_EXPORT_PYTHON" job/check.py 2>&1); then fail "$target: another plan.json was accepted"$'\n'"$changed"; fi
  answer=$(SEXTANT_PYTHON=$folder/none bash -c "$command" 2>&1) || true
  [[ $answer != *"accepts it"* ]] || fail "$target: accepted without a python"
  echo "$target: $command"
done
