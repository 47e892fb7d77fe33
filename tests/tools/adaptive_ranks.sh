#!/usr/bin/env bash
# A run that adapts where each rank is a process: one that computes at half its speed is found, the layout changes between two
# steps, and the losses are those of a run that never changed. Started again with fewer processes, it plans for those.
#   adaptive_ranks.sh SEXTANT [MPIEXEC]      MPIEXEC: the processes are MPI's
set -euo pipefail
sextant=$1 mpiexec=${2:-}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
fail() { echo "FAILED: $*"; exit 1; }
export HOME=$folder
unset XDG_CONFIG_HOME SEXTANT_SECRET SEXTANT_SECRET_FILE

# ranks N ARGUMENTS...: what rank 0 prints; the others print nothing.
ranks() {
  local n=$1 rank status=0 others=()
  shift
  if [[ -n $mpiexec ]]; then
    "$mpiexec" -n "$n" "$sextant" "$@" --comm mpi
    return
  fi
  export WORLD_SIZE=$n MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + RANDOM % 12000))
  for ((rank = 1; rank < n; ++rank)); do
    RANK=$rank LOCAL_RANK=$rank "$sextant" "$@" --comm env >"rank$rank.txt" 2>&1 &
    others+=($!)
  done
  RANK=0 LOCAL_RANK=0 "$sextant" "$@" --comm env || status=$?
  for rank in "${!others[@]}"; do
    wait "${others[$rank]}" || [[ $status -ne 0 ]] || fail "rank $((rank + 1)) ended with $?: $(cat "rank$((rank + 1)).txt")"
  done
  return "$status"
}
losses() { grep -o '"loss": *[0-9.e+-]*' "$1" | grep -o '[0-9.e+-]*$'; }

# So slow that computing for real is a small part of it, also under a sanitizer.
of_device=1.5
if grep -qE '__(asan|tsan)_init' "$sextant"; then of_device=0.25; fi
rate() { awk "BEGIN { print $1 * $of_device }"; }
cat >slow.json <<JSON
{"name": "slow", "nodes": 1, "fabric": "none",
 "device": {"name": "slow", "generation": "cpu", "memory_GiB": 4, "memory_bandwidth_GBps": $(rate 5), "multiprocessors": 1,
            "peak_TFLOPS": {"fp32": $(rate 0.01), "bf16": $(rate 0.01), "fp64": $(rate 0.005)}, "launch_overhead_us": 1, "host_link_GBps": 1},
 "node": {"gpus": 4, "link": "shared_memory", "link_bandwidth_GBps": 0.2, "link_latency_us": 50, "host_memory_GiB": 8,
          "host_memory_bandwidth_GBps": 20}}
JSON
question=(--model stories-260k --cluster slow.json --set model.n_layers=8 --seq-len 64 --global-batch 32 --threads 1 --print-every 10)

# A slow rank holds up a run that does not adapt, from its step on.
if [[ -z $mpiexec ]]; then
  echo 'step 3 rank 3 compute x2' >events
  ranks 4 run "${question[@]}" --steps 6 --emulate --inject events --json >slow.txt
  [[ $(grep -c '"step_time_s"' slow.txt) -eq 6 ]] || fail "six steps: $(cat slow.txt)"
  grep -oE '"(predicted_)?step_time_s": *[0-9.e+-]*' slow.txt | grep -o '[0-9.e+-]*$' | paste - - |
    awk 'NR > 3 && $1 < 1.5 * $2 { bad = 1 } END { exit bad }' || fail "rank 3 is not slow: $(cat slow.txt)"
fi

# The same training without emulation or adaptation: threads of one process.
"$sextant" run "${question[@]}" --steps 24 --json >threads.json
echo 'step 8 rank 3 compute x2' >events
ranks 4 run "${question[@]}" --steps 24 --adapt --adapt-budget 0 --emulate --inject events -o run --json >adapted.json
grep -q '"kind":"change","trigger":"drift"' run/adaptation.jsonl || fail "no change: $(cat run/adaptation.jsonl)"
grep -q 'rank 3 (node 0, GPU 3) computes' run/adaptation.jsonl || fail "another rank is blamed: $(cat run/adaptation.jsonl)"
grep -q '"changed":' run/adaptation.jsonl || fail "the layout stayed: $(cat run/adaptation.jsonl)"
[[ $(losses adapted.json | wc -l) -eq 24 ]] || fail "24 steps: $(losses adapted.json)"
paste <(losses threads.json) <(losses adapted.json) |
  awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > 1e-4 * $1) { print "step " NR - 1 ": " $1 " and " $2; bad = 1 } } END { exit bad }' ||
  fail "the losses are those of another training"

# A launcher has started three of them again.
ranks 3 run -o run --resume --steps 28 --adapt --emulate >three.txt 2>&1 || fail "three ranks: $(cat three.txt)"
grep -q '3 ranks were started, and the plan has 4: training under' three.txt || fail "no plan for three: $(cat three.txt)"
grep -q 'resuming from' three.txt || fail "it began anew: $(cat three.txt)"
[[ $(wc -l <run/steps.jsonl) -eq 28 ]] || fail "28 steps: $(wc -l run/steps.jsonl)"

# What is refused is refused by all of them: a plan for fewer without --adapt, more ranks than the cluster has, lost ranks of MPI
# (lost_processes.py has those of others).
status=0
ranks 4 run -o run --resume --steps 40 >refused.txt 2>&1 || status=$?
[[ $status -eq 3 ]] && grep -q 'found 3 ranks, expected 4' refused.txt || fail "four under a plan for three: $status $(cat refused.txt)"
if [[ -z $mpiexec ]]; then
  status=0
  ranks 5 run -o run --resume --steps 40 --adapt >refused.txt 2>&1 || status=$?
  [[ $status -eq 3 ]] && grep -q 'as many as were started' refused.txt || fail "five ranks of four: $status $(cat refused.txt)"
fi
if [[ -n $mpiexec ]]; then
  echo 'step 12 kill rank 1' >events
  status=0
  ranks 4 run "${question[@]}" --steps 30 --adapt --emulate --inject events >refused.txt 2>&1 || status=$?
  [[ $status -eq 3 ]] && grep -q 'resume --adapt' refused.txt || fail "a rank is killed: $status $(cat refused.txt)"
fi
echo "adaptive ranks: well"
