#!/usr/bin/env bash
# How far is training with linear layers in fp8 from training in bf16? The same small model on the same text, from the same
# weights, on CPU ranks whose GEMMs round operands as a GPU's do. Fails where the mean training loss of the last 50 steps, or
# the loss on text that was held back, differs by more than 1 %. The rate is one at which the model learns calmly: at ten times as
# much two seeds of bf16 alone end 7 % apart, and the formats as well.
# Usage: fp8_loss.sh SEXTANT NEW_FOLDER [STEPS]   (300)
command=$(readlink -f "${1:-}" || true) folder=$(realpath -m "${2:-.}") # of whoever calls: the next line goes to the root
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"
[[ $# -ge 2 && ! -e $folder ]] || fail "usage: fp8_loss.sh SEXTANT NEW_FOLDER [STEPS]"
steps=${3:-300}
texts=("/usr/share/common-licenses/*-[1-9]*")
compgen -G "${texts[0]}" >/dev/null || texts=("$PWD/README.md" "$PWD/docs")
mkdir -p "$folder"
cd "$folder" || exit
"$command" data "${texts[@]}" --tokenizer bytes --document paragraph --validation 0.05 --out tokens
for precision in bf16-mixed fp8; do
  "$command" simulate --model stories-260k --set model.ffn_hidden=176 --cluster laptop --stack sextant --seq-len 128 \
    --global-batch 8 --precision "$precision" --plan dp1.mbs8 -o "$precision.json" >/dev/null
  "$command" run "$precision.json" --data tokens --packing apart --lr 3e-4 --warmup 20 --steps "$steps" \
    --print-every 50 --eval-every "$steps" -o "$precision"
done
python3 - <<'END'
import json, pathlib, sys

def of(name):
    rows = [json.loads(line) for line in pathlib.Path(name, "steps.jsonl").read_text().splitlines()]
    trained = [row["loss"] for row in rows if "loss" in row][-50:]
    held_back = [row[key] for row in rows for key in ("validation_loss", "eval_loss") if row.get(key) is not None]
    return {"training loss, mean of 50 steps": sum(trained) / len(trained), **({"held back": held_back[-1]} if held_back else {})}

wide, narrow = of("bf16-mixed"), of("fp8")
for key in wide:
    off = 100 * (narrow[key] / wide[key] - 1)
    print(f"{key}: bf16 {wide[key]:.4f}, fp8 {narrow[key]:.4f}, {off:+.2f} %")
    if abs(off) > 1:
        sys.exit("fp8 is more than 1 % off")
END
