#!/usr/bin/env bash
# `sextant run` as an MPI job: a good one, one of the wrong size, and jobs of which a rank is killed or stopped.
# Usage: mpi_runs.sh SEXTANT MPIEXEC
set -uo pipefail
sextant=$1
mpiexec=$2
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/mpi_common.sh"

"$sextant" simulate --model stories-260k --cluster laptop --stack sextant --seq-len 32 --global-batch 4 \
  --plan dp2.z1.mbs2 -o two.json >/dev/null || { echo "FAILED: no plan"; exit 1; }

# A rank that never comes to MPI_Init; the other waits ten times the deadline for it, beside what follows.
timeout 100 "$mpiexec" -n 1 "$sextant" run two.json --comm mpi --steps 2 --deadline 1 : -n 1 sleep 90 >never 2>&1 &
never=$!

"$mpiexec" -n 2 "$sextant" run two.json --comm mpi --steps 2 -o ran >out 2>&1
code=$?
[[ $code -eq 0 ]] || fail "2 ranks, 2 steps: exit $code"
[[ $(wc -l <ran/steps.jsonl) -eq 2 ]] || fail "steps.jsonl: not 2 lines"
"$sextant" run two.json --steps 2 -o local >out 2>&1 || fail "the same on threads"
same_steps "dp2"

# On with what the folder says, on MPI ranks: rates, seed, data and how often to save; then under another plan.
for c in a b c d e f g h i j; do printf '%0.s'$c {1..300} && printf '\n\n'; done >text.txt
"$sextant" data text.txt --tokenizer bytes --document paragraph --validation 0.3 --seed 2 --out tokens >out 2>&1 || fail "data"
rm -rf ran local
"$mpiexec" -n 2 "$sextant" run two.json --comm mpi --steps 3 --lr 0.007 --seed 5 --data tokens --eval-every 2 \
  --eval-batches 1 --save-every 2 --keep-every 2 -o ran >out 2>&1 || fail "a run to go on with: exit $?"
"$mpiexec" -n 2 "$sextant" run --comm mpi -o ran --resume --steps 6 >wrapped 2>&1 || fail "--resume: exit $?"
tr -s '\r\n ' ' ' <wrapped >out # mpirun gives its ranks a terminal, whose width their lines have
grep -q 'as in the run so far: .*--lr 0.007.*--seed 5.*--data .*tokens.*--eval-every 2.*--save-every 2.*--keep-every 2' out ||
  fail "--resume on MPI ranks: not the options of the run"
grep -q 'other than in the run so far: --steps 6 (was 3)' out || fail "--resume: no word of the other steps"
[[ -d ran/checkpoints/step-00000004 && -d ran/checkpoints/step-00000006 ]] || fail "--resume: not saved every 2 steps"
[[ $(grep -c '"validation_loss"' ran/steps.jsonl) -eq 4 ]] || fail "--resume: not 4 looks at the validation split"
"$sextant" run two.json --steps 3 --lr 0.007 --seed 5 --data tokens --eval-every 2 --eval-batches 1 -o local >out 2>&1 &&
  "$sextant" run -o local --resume --steps 6 >out 2>&1 || fail "the same on threads"
same_steps "resumed dp2"
"$sextant" simulate --model stories-260k --cluster laptop --stack sextant --seq-len 32 --global-batch 4 \
  --plan tp2.dp1.mbs2 -o other.json >/dev/null || fail "no other plan"
"$mpiexec" -n 2 "$sextant" run other.json --comm mpi -o ran --resume --steps 8 >out 2>&1 || fail "another plan: exit $?"
"$sextant" run other.json -o local --resume --steps 8 >out 2>&1 || fail "another plan, on threads: exit $?"
same_steps "resumed under tp2"

rm -rf ran
"$mpiexec" -n 2 "$sextant" run two.json --comm mpi --steps 2 -o ran >out 2>&1 || fail "2 ranks, 2 steps, again: exit $?"
"$sextant" compare two.json ran --json >out 2>&1 || fail "compare: exit $?"
grep -q 'grad_reduce' out || fail "compare: no measured operations of MPI ranks"

"$mpiexec" -n 3 "$sextant" run two.json --comm mpi --steps 2 -o three >out 2>&1
code=$?
[[ $code -eq 3 ]] || fail "a plan for 2 ranks on 3: exit $code, expected 3"
grep -q 'expected 3 ranks' out || fail "a plan for 2 ranks on 3: no word of it"
[[ ! -e three/steps.jsonl ]] || fail "a refused run leaves a file of steps"

# Ranks of one machine share its memory: one of these fits, all together do not.
kib=$(awk '/MemTotal/ {print $2}' /proc/meminfo)
"$sextant" simulate --model stories-260k --cluster 1x4xcpu --stack sextant --seq-len 32 --global-batch 4 --plan dp4.z0.mbs1 \
  --set device.memory_GiB=100000 --set model.hidden=1024 --set model.vocab_size=$((kib / 40)) -o vast.json \
  >out 2>&1 || fail "no vast plan"
timeout 60 "$mpiexec" -n 4 "$sextant" run vast.json --comm mpi --steps 1 >out 2>&1
code=$?
[[ $code -eq 3 ]] || fail "too little memory for 4 ranks: exit $code, expected 3"
grep -q 'for the 4 ranks of this machine, expected at most' out || fail "too little memory for 4 ranks: no word of it"

# Damage that one rank alone meets: its word, and the end of all.
cp -r ran damaged
extents=$(echo damaged/checkpoints/*/rank-00001.safetensors)
at=$(($(stat -c %s "$extents") - 100))
byte=$(od -An -tu1 -j $at -N 1 "$extents")
printf "\\x$(printf %02x $(((byte + 1) % 256)))" | dd of="$extents" bs=1 seek=$at conv=notrunc status=none
timeout 60 "$mpiexec" -n 2 "$sextant" run two.json --comm mpi --steps 4 -o damaged --resume >out 2>&1
code=$?
[[ $code -eq 3 ]] || fail "an extent of rank 1 damaged: exit $code, expected 3"
grep -q 'rank-00001.safetensors' out || fail "an extent of rank 1 damaged: no word of the file"

timeout 60 "$mpiexec" -n 1 "$sextant" run two.json --comm mpi --steps 2 -o mixed \
  : -n 1 "$sextant" run other.json --comm mpi --steps 2 -o mixed >out 2>&1
code=$?
[[ $code -eq 3 ]] || fail "ranks of two plans: exit $code, expected 3"
grep -q 'rank 1 with a plan' out || fail "ranks of two plans: no word of it"
[[ ! -e mixed/steps.jsonl ]] || fail "ranks of two plans leave a file of steps"

# Four ranks, none of which speaks with all others: who is stopped is known from who gives no answer.
"$sextant" simulate --model stories-260k --cluster 1x4xcpu --stack sextant --seq-len 32 --global-batch 4 \
  --plan tp2.pp2.mbs2 -o four.json >/dev/null || fail "no plan of four"

# Under mpiexec, ranks are its processes without being told so.
"$mpiexec" -n 4 "$sextant" run four.json --steps 2 -o by_launcher >out 2>&1
code=$?
[[ $code -eq 0 && $(wc -l <by_launcher/steps.jsonl) -eq 2 ]] || fail "4 ranks without --comm: exit $code"

# Starts a job that would run for hours, sends SIGNAL to one rank in the middle, and waits for the end of the job.
lose_a_rank() {
  local signal=$1 job rank second number
  : >out # or the lines of the last job would do for this one's, until its shell has opened the file
  "$mpiexec" -n 4 "$sextant" run four.json --comm mpi --steps 100000000 --deadline 2 >out 2>&1 &
  job=$!
  for ((second = 0; second < 300; ++second)); do
    grep -qE '^ +3 ' out && break
    sleep 0.1
  done
  rank=$(pgrep -P $job | tail -n 1)
  if [[ -z $rank ]] || ! grep -qE '^ +3 ' out; then
    kill -9 $job
    fail "$signal: the job did not come to step 3"
    return
  fi
  number=$(tr '\0' '\n' <"/proc/$rank/environ" | sed -n 's/^\(OMPI_COMM_WORLD_RANK\|PMI_RANK\)=//p' | head -n 1)
  kill -s "$signal" "$rank"
  SECONDS=0
  for ((second = 0; second < 300; ++second)); do
    kill -0 $job 2>/dev/null || break
    sleep 0.1
  done
  if kill -0 $job 2>/dev/null; then
    kill -9 "$rank" $job
    fail "$signal: the job goes on 30 s later"
    return
  fi
  wait $job
  code=$?
  [[ $code -ne 0 ]] || fail "$signal: the job ended with exit 0"
  [[ $signal != STOP || $code -eq 7 ]] || fail "STOP: exit $code, expected 7"
  [[ $signal != STOP || -z $number ]] || grep -q "sextant run: rank $number stalls the run" out ||
    fail "STOP: the report does not begin with rank $number"
  [[ $signal != STOP || $(grep -o 'rank [0-9, ]*stalls* the run' out | sort -u | wc -l) -eq 1 ]] ||
    fail "STOP: others than rank $number are blamed"
  printf '%s: exit %s after %s s\n' "$signal" "$code" "$SECONDS"
}
lose_a_rank KILL
lose_a_rank STOP
grep -q 'is late' out || fail "STOP: no word of the straggler"
grep -qE '^  rank [0-3]: no answer' out || fail "STOP: no line of the rank that is stopped"
[[ $(grep -B1 '^    last done: .*(op' out | grep -oE '^  rank [0-3]:' | sort -u | wc -l) -eq 3 ]] ||
  fail "STOP: the last operations of the other ranks are missing: $(grep '^  rank' out)"

wait $never
code=$?
[[ $code -eq 7 ]] || { cat never; fail "a rank that never comes to MPI: exit $code, expected 7"; }
grep -q 'MPI has not come up within 10 s' never || fail "a rank that never comes to MPI: no word of it"

finish
