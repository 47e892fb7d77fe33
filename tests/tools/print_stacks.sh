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

# What a preset states without a source is found, if no table shows it.
cp tools/presets/stacks/*.json "$folder"
sed -i 's/"offload_with_pp": {.*},/"offload_with_pp": false,/' "$folder/torchtitan.json"
refusal=$(tools/dev/print_stacks.py --presets "$folder" --page "$folder/stacks.md" 2>&1 || true)
if [[ $refusal != *"torchtitan: offload_with_pp has no source of its own"* ]]; then
  echo "a statement without a source was not found: $refusal"
  exit 1
fi

# An ability that comes from another framework than the stack's own is found as well.
cp tools/presets/stacks/*.json "$folder"
sed -i '/"interleaved": /d' "$folder/alpa.json"
refusal=$(tools/dev/print_stacks.py --presets "$folder" --page "$folder/stacks.md" 2>&1 || true)
if [[ $refusal != *"alpa: interleaved has no source of its own"* ]]; then
  echo "an ability of another framework was not found: $refusal"
  exit 1
fi
