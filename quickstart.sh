#!/usr/bin/env bash
# From a bare Debian 12 machine to a plan and a run: installs packages, builds, plans LLaMA-2-13B on 64 A100-80GB, then
# plans a small LLaMA on this machine's CPU, measures the machine, runs 30 steps on several ranks and compares; then trains
# one on real text, stops, resumes under another layout, and exports it.
# Run it again whenever you like: it builds only what is left to do, and writes to build/quickstart alone.
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/tools/dev/common.sh"
usage="usage: ./quickstart.sh [--until-plan]"
case ${1:-} in
  -h | --help)
    say "$usage"
    say "  (packages, build, a plan for 64 GPUs; then a small plan and its run here, and a small training on text)"
    exit 0
    ;;
  "" | --until-plan) ;;
  *) fail "unknown argument $1" "$usage" ;;
esac
[[ $# -le 1 ]] || fail "unknown argument $2" "$usage"

step "Packages"
tools/dev/install_packages.sh
configure release OFF
build release sextant

sextant() {
  say
  step "sextant $*"
  build/release/bin/sextant "$@"
}
sextant plan --model llama-2-13b --cluster 8x8xa100-80gb --seq-len 4096 --global-batch 1024
[[ ${1:-} != --until-plan ]] || exit 0

folder=build/quickstart
mkdir -p "$folder"
rm -rf "$folder/run" # a run never overwrites another
sextant plan --model stories-260k --cluster laptop --stack sextant --seq-len 256 --global-batch 32 \
  -o "$folder/plan.json"
sextant profile --for "$folder/plan.json" -o "$folder/profile.json"
sextant run "$folder/plan.json" --profile "$folder/profile.json" --steps 30 --lr 1e-2 --warmup 5 -o "$folder/run"
rm -rf "$folder/text"
tools/dev/train_on_text.sh build/release/bin/sextant "$folder/text"
say
say "The command is $PWD/build/release/bin/sextant (try it with --help). Next: $PWD/test.sh runs all tests."
