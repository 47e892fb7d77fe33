#!/usr/bin/env bash
# Runs clang-tidy (.clang-tidy) over the compiled sources of the rooms. Findings end it with status 1.
#   tools/dev/lint.sh [--budget-s SECONDS [--limit-s SECONDS]] [FILE...]
# With a budget it reads what changed last first, begins no other file when the time is used up, and names every file
# that it did not read. That alone is no failure: a slow machine makes no code worse. The files of the last commit
# are read beyond the budget, up to the limit (default: three budgets); one of them left unread ends it with status 1.
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

budget_s=0 limit_s=0
while [[ ${1:-} == --budget-s || ${1:-} == --limit-s ]]; do
  [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || fail "$1 needs a number of seconds"
  if [[ $1 == --budget-s ]]; then budget_s=$2; else limit_s=$2; fi
  shift 2
done
command -v clang-tidy >/dev/null || fail "clang-tidy is missing" "run: tools/dev/install_packages.sh --checks"
# Each source by itself, with its own command: a build may compile several at once.
cmake --preset release -B build/lint -DSEXTANT_UNITY=OFF -DSEXTANT_TESTS=OFF >/dev/null ||
  fail "the sources could not be listed" "the message of cmake stands above"
database=build/lint/compile_commands.json

# Of the names on standard input, each once, those that are compiled here (tests are read by the compiler only).
compiled() {
  awk '/^(core|cost_models|planner|kernels|runtime|profiler|tools)\/.*\.cpp$/ && !seen[$0]++' |
    while read -r file; do
      if [[ -f $file ]] && grep -qF "/$file\"" "$database"; then echo "$file"; fi
    done
}

if [[ $# -gt 0 ]]; then
  # A file of another build (no_cuda.cpp beside a toolkit) would be read with the flags of some neighbour.
  mapfile -t files < <(printf '%s\n' "$@" | compiled)
  must_read=("${files[@]}")
  for file in "$@"; do
    printf '%s\n' "${files[@]}" | grep -qxF "$file" || say "not compiled here, and not read: $file"
  done
else
  must_read=()
  # The first commit, or the only one of a shallow clone, "changes" every file: nothing is known of the last change.
  if git rev-parse --quiet --verify HEAD^ >/dev/null; then
    mapfile -t must_read < <({ git diff --name-only HEAD; git log -n 1 --no-merges --name-only --pretty=; } | compiled)
  fi
  mapfile -t files < <({
    printf '%s\n' "${must_read[@]}"
    git log -n 30 --first-parent -m --name-only --pretty=
    git ls-files
  } | compiled)
fi
[[ ${#files[@]} -gt 0 ]] || fail "no file to read" "is one of them compiled here?"

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
export results
lint_one() { # FILE BEGIN_BEFORE, in seconds of the epoch
  local file=$1 out left now status=0
  out=$results/$(tr / _ <<<"$file")
  now=$(date +%s)
  left=$((last_end - now))
  [[ $now -lt $2 && $left -gt 0 ]] || return 0
  timeout "$left" clang-tidy -p build/lint --quiet --warnings-as-errors='*' --extra-arg=-Wno-unknown-warning-option \
    "$file" >"$out.log" 2>"$out.err" || status=$?
  if [[ $status -eq 0 ]]; then
    touch "$out.ok"
    echo "  ok    $file"
  elif [[ $status -ne 124 ]]; then # 124: cut off by the limit, so not read
    touch "$out.bad"
    echo "  FOUND $file"
    # A clang-tidy that could not read the file at all says so elsewhere.
    grep -E '(warning|error):' "$out.log" | sort -u | sed "s|$PWD/||; s/^/        /" || tail -3 "$out.err"
  fi
}
export -f lint_one
never=$((1 << 30))
start=$(date +%s)
budget_end=$((start + (budget_s > 0 ? budget_s : never)))
last_end=$((start + (limit_s > 0 ? limit_s : budget_s > 0 ? 3 * budget_s : never)))
export last_end
# The files that must be read stand first in files as well; a second look at one of them would be waste.
{
  for file in "${must_read[@]}"; do echo "$file $last_end"; done
  printf '%s\n' "${files[@]}" "${must_read[@]}" "${must_read[@]}" | sort | uniq -u >"$results/rest"
  for file in "${files[@]}"; do
    if grep -qxF "$file" "$results/rest"; then echo "$file $budget_end"; fi
  done
} | xargs -r -P "$(nproc)" -L 1 bash -c 'lint_one "$1" "$2"' _

was_read() { compgen -G "$results/$(tr / _ <<<"$1").[ob]*" >/dev/null; }
unread=()
for file in "${files[@]}"; do was_read "$file" || unread+=("$file"); done
bad=$(find "$results" -name '*.bad' | wc -l)
say "clang-tidy read $((${#files[@]} - ${#unread[@]})) of ${#files[@]} files in $SECONDS s: $bad with findings."
status=$((bad > 0))
if [[ ${#unread[@]} -gt 0 ]]; then
  say "NOT READ, for the $budget_s s were over: ${#unread[@]} of ${#files[@]} files, first ${unread[*]:0:5}"
  for file in "${must_read[@]}"; do
    was_read "$file" || { say "$file changed last and was not read: this is no pass."; status=1; }
  done
fi
exit "$status"
