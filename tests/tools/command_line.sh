#!/usr/bin/env bash
# The command as a user meets it: pipes, a full disk, widths, colours, bad words. Usage: command_line.sh SEXTANT
set -uo pipefail
sextant=$1
failures=0
unset COLUMNS NO_COLOR

# expect STATUS PATTERN COMMAND...: runs it, wants the exit code and a line of output that matches.
expect() {
  local want=$1 pattern=$2 out status
  shift 2
  out=$("$@" 2>&1)
  status=$?
  if [[ $status -ne $want ]] || ! grep -Eq -- "$pattern" <<<"$out"; then
    printf 'FAILED: %s\n  wanted exit %s and /%s/, got exit %s and:\n%s\n' "$*" "$want" "$pattern" "$status" "$out"
    failures=$((failures + 1))
  fi
}
sh_() { bash -c "$1"; }

expect 0 '^sextant [0-9]' "$sextant" --version
expect 2 'usage: sextant VERB' "$sextant"
expect 2 "did you mean 'sextant doctor'" "$sextant" docter
expect 2 'has no option --wid' "$sextant" doctor --wid
expect 2 'try: sextant doctor --help' "$sextant" doctor --wid
expect 7 'could not be written.*disk full' sh_ "'$sextant' completion bash >/dev/full"
expect 7 'could not be written' sh_ "'$sextant' --help >/dev/full"
expect 0 '^usage' sh_ "'$sextant' --help | head -1"
expect 2 '--presets: found /etc/passwd' "$sextant" presets --presets /etc/passwd

# Neither pipes nor NO_COLOR get colours; --color always does.
expect 1 '^$' sh_ "'$sextant' doctor | grep -q \$'\\e'; exit \$?"
expect 0 'yes' sh_ "'$sextant' doctor --color always | grep -q \$'\\e' && echo yes"
expect 0 'ASCII' sh_ "LC_ALL=C '$sextant' doctor --color never | LC_ALL=C grep -q '[^ -~]' || echo ASCII"

for columns in 80 120; do
  for verb in $("$sextant" --help | sed -n '/^verbs/,/^$/s/^  \([a-z]*\) .*/\1/p'); do
    wide=$(COLUMNS=$columns "$sextant" "$verb" --help | grep -v 'sextant ' | awk -v w=$columns 'length($0) > w')
    [[ -z $wide ]] || { printf 'FAILED: %s --help is wider than %s:\n%s\n' "$verb" "$columns" "$wide"; failures=$((failures + 1)); }
  done
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The folder where a user stands is none that libraries are loaded from.
mkdir "$work/strange_libraries"
for library in $(ldd "$sextant" | sed -n 's/^\s*\(lib[^ ]*\) =>.*/\1/p'); do echo "no library" >"$work/strange_libraries/$library"; done
expect 0 '^sextant [0-9]' sh_ "[[ -s '$work/strange_libraries/libz.so.1' ]] && cd '$work/strange_libraries' && '$(readlink -f "$sextant")' --version"
# A bundle's presets lie beside its bin/; a folder that only has their name is none.
mkdir -p "$work/bundle/bin" "$work/other/bin" "$work/other/presets"
cp "$sextant" "$work/bundle/bin/sextant" && cp "$sextant" "$work/other/bin/sextant"
presets=$("$sextant" doctor --json | grep -o '"found": "[0-9]* in [^"]*"' | sed 's/.* in //; s/"//')
cp -r "$presets" "$work/bundle/presets"
expect 0 "presets +ok +[0-9]+ in .*/bundle/presets" env -u SEXTANT_PRESETS COLUMNS=200 "$work/bundle/bin/sextant" doctor
expect 0 'yes' sh_ "COLUMNS=200 '$work/other/bin/sextant' doctor | grep -q /other/presets || echo yes"

# The folder of a run may be somebody else's: what lies in it as a link leads nothing that is written outside.
(cd "$work" && "$sextant" simulate --model stories-260k --cluster laptop --stack sextant --seq-len 32 --global-batch 4 \
  --plan dp2.z1.mbs2 -o small.json && "$sextant" run small.json --steps 2 -o run) >/dev/null 2>&1 ||
  { echo "FAILED: no run to go on with"; failures=$((failures + 1)); }
for name in plan.json options.json steps.jsonl .lock; do
  cp -r "$work/run" "$work/strange" && rm -f "$work/strange/$name" && echo mine >"$work/mine" && ln -s ../mine "$work/strange/$name"
  expect "$([[ $name == .lock ]] && echo 7 || echo 3)" "$name" "$sextant" run -o "$work/strange" --resume --steps 3
  [[ $(cat "$work/mine") == mine ]] || { echo "FAILED: a run writes through the link $name"; failures=$((failures + 1)); }
  rm -r "$work/strange"
done
expect 0 'checkpoint of step 3' "$sextant" run -o "$work/run" --resume --steps 3

# Too little address space is said before anything is allocated, or ends the run; it is no mistake of the program.
(cd "$work" && "$sextant" simulate --model stories-15m --cluster laptop --stack sextant --seq-len 64 --global-batch 8 \
  --plan dp2.z1.mbs1 -o plan.json >/dev/null 2>&1) || { echo "FAILED: no plan to run"; failures=$((failures + 1)); }
sanitized=$(grep -qE '__(asan|tsan)_init' "$sextant" && echo yes)  # these need more addresses than any limit leaves
for limit in 300000 900000; do  # KiB
  [[ -z $sanitized ]] || break
  expect 3 'for the 2 ranks of this process, expected at most the .* GiB that ulimit -v leaves' \
    sh_ "ulimit -v $limit; '$sextant' run $work/plan.json --steps 1"
done
[[ -n $sanitized ]] || expect 0 '.' sh_ "ulimit -v 4000000; '$sextant' run $work/plan.json --steps 1"

# Threads of a product sleep while they wait, unless the user says otherwise: shared cores are not spun away.
spins() { sh_ "unset GOMP_SPINCOUNT OMP_WAIT_POLICY; $1 OMP_DISPLAY_ENV=verbose '$sextant' run $work/plan.json --steps 1 2>&1 |
  grep -o \"GOMP_SPINCOUNT = '[0-9]*'\" | tail -1"; }
expect 0 "= '0'" spins ''
expect 0 "= '[1-9]" spins 'OMP_WAIT_POLICY=active'

# Files that may not grow: told, not killed; nothing half written stays, and training goes on after a save that failed.
printf 'a paragraph of text\n\n%.0s' {1..60000} >"$work/text.txt"
"$sextant" simulate --model stories-260k --cluster laptop --stack sextant --seq-len 32 --global-batch 4 --plan dp2.z1.mbs2 \
  -o "$work/small.json" >/dev/null && "$sextant" run "$work/small.json" --steps 2 -o "$work/saved" >/dev/null
limited() { sh_ "ulimit -f 16; cd $work; '$sextant' $*"; }  # 16 KiB
expect 7 'checkpoint of step 4.*File too large' limited run small.json --steps 4 --save-every 1 -o refused
[[ $(wc -l <"$work/refused/steps.jsonl") -eq 4 && -z $(ls "$work/refused/checkpoints") ]] ||
  { echo "FAILED: a run whose saves fail"; failures=$((failures + 1)); }
expect 7 'File too large' limited weights export saved --out exported
expect 7 'File too large' limited data text.txt --tokenizer bytes --document paragraph --out tokens
expect 7 'File too large' limited simulate --plan small.json --trace trace.json
[[ -z $(cd "$work" && ls -d exported* trace* tokens* 2>/dev/null) ]] ||
  { printf 'FAILED: left behind: %s\n' "$(ls "$work")"; failures=$((failures + 1)); }

# Asked to end more than once, as schedulers do, a run saves; a second Ctrl-C ends it without.
ended() {  # ended FOLDER SIGNAL...: its exit code
  local folder=$work/$1 run
  shift
  "$sextant" run "$work/plan.json" --steps 100000 -o "$folder" >"$folder.out" 2>&1 &
  run=$!
  until [[ -s $folder/steps.jsonl ]]; do sleep 0.05; done
  for signal in "$@"; do kill -"$signal" $run && sleep 0.05; done
  wait $run
}
ended asked TERM TERM USR1 HUP TERM
[[ $? -eq 0 && -n $(ls "$work/asked/checkpoints") ]] || { echo "FAILED: SIGTERM twice"; failures=$((failures + 1)); }
ended twice INT INT
[[ $? -eq 130 && -z $(compgen -G "$work/twice/checkpoints/step-*") ]] && grep -q 'Ctrl-C again' "$work/twice.out" ||
  { echo "FAILED: Ctrl-C twice"; failures=$((failures + 1)); }

# Negative control of this script's own check.
before=$failures
expect 0 'no such text' "$sextant" --version >/dev/null
[[ $failures -gt $before ]] && failures=$before || { echo "FAILED: expect() accepts anything"; failures=$((failures + 1)); }

[[ $failures -eq 0 ]] && echo "all as expected"
exit $((failures > 0))
