#!/usr/bin/env bash
# A first training on real text, as ./quickstart.sh shows it and a test checks it: texts to tokens, training, an end by a
# time limit, another layout, going on, and the weights in Hugging Face form.
# Usage: train_on_text.sh SEXTANT FOLDER [SECONDS [SEQ_LEN GLOBAL_BATCH [STEPS]]]   (20, 128, 8 and 1000; FOLDER is made)
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"
[[ $# -ge 2 && ! -e $2 ]] || fail "usage: train_on_text.sh SEXTANT NEW_FOLDER [SECONDS [SEQ_LEN GLOBAL_BATCH [STEPS]]]"
command=$(readlink -f "$1") seconds=${3:-20} length=${4:-128} batch=${5:-8} steps=${6:-1000}
# Texts that every Debian machine has; elsewhere, the project's own.
texts=("/usr/share/common-licenses/*-[1-9]*")
compgen -G "${texts[0]}" >/dev/null || texts=("$PWD/README.md" "$PWD/docs")
mkdir -p "$2"
cd "$2" || exit

sextant() {
  say
  step "sextant$(printf ' %q' "$@")"
  "$command" "$@"
}
model=(--model stories-260k --cluster laptop --stack sextant --seq-len "$length" --global-batch "$batch")
learning=(--lr 3e-3 --warmup 20 --steps "$steps" --print-every 50)

sextant data "${texts[@]}" --tokenizer bytes --document paragraph --validation 0.05 --out tokens
sextant simulate "${model[@]}" --plan dp4.z1.mbs2 -o plan.json
sextant run plan.json --data tokens --packing apart "${learning[@]}" --time-limit-s "$seconds" -o run
sextant simulate "${model[@]}" --plan tp2.sp.pp2.mbs2 -o other.json
sextant run other.json -o run --resume --time-limit-s "$seconds" --eval-every 50 --print-every 50
sextant weights export run --out weights
sextant sample run --prompt "The licens" --max-tokens 80
