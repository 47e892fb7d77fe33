# What the tests of `sextant run` under MPI share: a folder of their own to work in, and a count of failures.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
failures=0

fail() {
  printf 'FAILED: %s\n' "$*"
  tail -n 20 out 2>/dev/null
  failures=$((failures + 1))
}

# same_steps WHAT: the runs in ran/ and local/ have the same losses and gradient norms, to the last digit.
same_steps() {
  local run
  for run in ran local; do sed -nE 's/.*"loss":([^,]*),"grad_norm":([^,]*),.*/\1 \2/p' $run/steps.jsonl >$run.numbers; done
  if [[ ! -s ran.numbers ]] || ! cmp -s ran.numbers local.numbers; then
    fail "$1: MPI ranks and threads differ: $(paste ran.numbers local.numbers)"
  fi
}

finish() {
  [[ $failures -eq 0 ]] && echo "all as expected"
  exit $((failures > 0))
}
