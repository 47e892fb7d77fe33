#!/usr/bin/env bash
# From a bare Debian 12 machine to a plan: installs packages, builds, and plans LLaMA-2-13B on 64 A100-80GB.
# Run it again whenever you like: it does only what is left to do.
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/tools/dev/common.sh"
[[ ${1:-} != -h && ${1:-} != --help ]] || { say "usage: ./quickstart.sh   (no options: packages, build, first plan)"; exit 0; }
[[ $# -eq 0 ]] || fail "unknown argument $1" "usage: ./quickstart.sh (no options)"

step "Packages"
tools/dev/install_packages.sh
configure_and_build release sextant

sextant=build/release/bin/sextant
if "$sextant" plan --help >/dev/null 2>&1; then
  job=("$sextant" plan --model llama-2-13b --cluster 8x8xa100-80gb --seq-len 4096 --global-batch 1024)
else
  job=("$sextant" presets)
fi
step "${job[*]}"
"${job[@]}"
say
say "The command is $PWD/$sextant (try it with --help). Next: $PWD/test.sh runs all tests."
