#!/usr/bin/env bash
# docs/stacks.md says what the presets of software stacks say, and a preset that says more is found.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
tools/dev/print_stacks.py --check

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp tools/presets/stacks/*.json "$folder"
sed -i 's/"tensor_parallel": {"value": false/"tensor_parallel": {"value": true/' "$folder/llm-c.json"
if tools/dev/print_stacks.py --check --presets "$folder" 2>/dev/null; then
  echo "a stale page was not found"
  exit 1
fi

# refuses PRESET EXPRESSION ABILITY: the presets with that one changed by sed are refused, for that ability.
refuses() {
  cp tools/presets/stacks/*.json "$folder"
  sed -i "$2" "$folder/$1.json"
  refusal=$(tools/dev/print_stacks.py --presets "$folder" --page "$folder/stacks.md" 2>&1 || true)
  if [[ $refusal != *"$1.json: "*$'\n    "'"$3"'": {"value": '* ]]; then
    echo "$3 of $1 without a source was not found: $refusal"
    exit 1
  fi
}
# What a preset states without a source, if no table shows it; and an ability that comes from another framework than the stack's own.
refuses torchtitan 's/"offload_with_pp": {.*},/"offload_with_pp": false,/' offload_with_pp
refuses alpa '/"interleaved": /d' interleaved
