#!/usr/bin/env bash
# Ranks that a shell has started, without MPI: a run of two processes trains to the same numbers as two threads do, a rank
# that is killed ends the others, and what the environment lacks is named.
set -euo pipefail
sextant=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
fail() { echo "FAILED: $*"; exit 1; }
port=$((20000 + RANDOM % 12000))  # below those that the system gives to whoever connects
# Where the processes' secret is kept, which the first of them makes.
export HOME=$folder
unset XDG_CONFIG_HOME SEXTANT_SECRET SEXTANT_SECRET_FILE
export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port
# One process of two, in place of a shell of its own, so that its id is the one that is known.
launch() {
  export RANK=$1 LOCAL_RANK=$1
  shift
  exec "$sextant" "$@" --comm env
}

"$sextant" simulate --model stories-260k --cluster laptop --stack sextant --seq-len 32 --global-batch 4 \
  --plan dp2.z1.mbs2 -o plan.json >simulated
"$sextant" run plan.json --steps 3 --threads 1 --json >threads.json
launch 1 run plan.json --steps 3 --threads 1 --json >second.json &
(launch 0 run plan.json --steps 3 --threads 1 --json >first.json)
wait $! || fail "rank 1 ended with $?"
losses() { grep -o '"loss": *[0-9.e+-]*' "$1"; }
[[ $(losses first.json | wc -l) -eq 3 ]] || fail "three steps: $(cat first.json)"
[[ $(losses first.json) == "$(losses threads.json)" ]] || fail "losses differ: $(losses first.json) $(losses threads.json)"
[[ ! -s second.json ]] || fail "only rank 0 answers"
[[ $(stat -c %a .config/sextant/secret) == 600 ]] || fail "a secret that others can read: $(ls -l .config/sextant)"
grep -qr "$(cat .config/sextant/secret)" first.json threads.json && fail "the secret is in what is printed"
chmod 644 .config/sextant/secret
status=0
(launch 0 run plan.json --steps 3) >open.txt 2>&1 || status=$?
chmod 600 .config/sextant/secret
[[ $status -eq 2 ]] && grep -q "chmod 600" open.txt || fail "a secret that others can read is taken: $status $(cat open.txt)"

# Strangers that connect all the while change nothing.
for ((n = 0; n < 400; ++n)); do
  (echo "GET / HTTP/1.0" >"/dev/tcp/127.0.0.1/$port") 2>/dev/null || sleep 0.01
done &
launch 1 run plan.json --steps 3 --threads 1 --json >second.json &
second=$!
(launch 0 run plan.json --steps 3 --threads 1 --json >visited.json)
wait "$second" || fail "rank 1 ended with $? while strangers came"
[[ $(losses visited.json) == "$(losses threads.json)" ]] || fail "strangers change losses: $(losses visited.json)"

launch 1 profile --for plan.json --steps 2 -o ignored.json >second.txt &
(launch 0 profile --for plan.json --steps 2 -o profile.json >profile.txt)
wait $! || fail "rank 1 of the profile ended with $?"
grep -q '"reduce_scatter' profile.json || fail "no exchange in the profile"
[[ ! -e ignored.json ]] || fail "only rank 0 writes"

launch 1 run plan.json --steps 100000 >second.txt 2>&1 &
second=$!
launch 0 run plan.json --steps 100000 >first.txt 2>&1 &
first=$!
for ((tenth = 0; tenth < 300; ++tenth)); do
  [[ $(wc -l <first.txt) -gt 4 ]] && break  # it trains
  sleep 0.1
done
kill -KILL "$second" || fail "rank 1 was not there to be killed: $(cat second.txt)"
status=0
wait "$first" || status=$?
[[ $status -eq 7 ]] || fail "rank 0 ended with $status: $(tail -3 first.txt)"
grep -q "rank 1 has gone" first.txt || fail "the reason is missing: $(tail -3 first.txt)"
wait "$second" || true

status=0
env -u WORLD_SIZE RANK=0 "$sextant" run plan.json --comm env >missing.txt 2>&1 || status=$?
[[ $status -eq 2 ]] && grep -q "WORLD_SIZE" missing.txt || fail "what is missing: $status $(cat missing.txt)"

# What can be seen without the others is said without them; and whoever waits for them can be asked to end.
status=0
(export WORLD_SIZE=4; launch 0 run plan.json --steps 1) >more.txt 2>&1 || status=$?
[[ $status -eq 3 ]] && grep -q "expected 4 ranks, as many as were started" more.txt || fail "four for two: $status $(cat more.txt)"
launch 0 run plan.json --steps 1 >alone.txt 2>&1 &
alone=$!
sleep 1
kill -TERM "$alone"
for ((tenth = 0; tenth < 100; ++tenth)); do
  kill -0 "$alone" 2>/dev/null || break
  sleep 0.1
done
kill -KILL "$alone" 2>/dev/null && fail "it waits for the other rank after SIGTERM"
wait "$alone" && fail "a run that never began ends well: $(cat alone.txt)"
grep -q "when the run was asked to end" alone.txt || fail "no word of the end: $(cat alone.txt)"
# A job that is stopped as a whole and goes on is not late, however long it was away.
"$sextant" run plan.json --steps 100000000 --print-every 10000 --deadline 2 --no-save >slept.txt 2>&1 &
slept=$!
sleep 2
kill -STOP "$slept"
sleep 4
kill -CONT "$slept"
sleep 2
kill -TERM "$slept" || fail "it was ended when it went on: $(tail -3 slept.txt)"
wait "$slept" && status=0 || status=$?
[[ $status -ne 7 ]] || fail "a job that was stopped for a while ends with 7: $(tail -3 slept.txt)"
echo "all well"
