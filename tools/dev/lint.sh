#!/usr/bin/env bash
# Runs clang-tidy (.clang-tidy) over the compiled sources of the rooms. Findings end it with status 1.
#   tools/dev/lint.sh [--budget-s SECONDS] [FILE...]
# With a budget it reads what changed last first, stops when the time is used up, and names every file that it
# did not read; a file of the last commit left unread ends it with status 1 too.
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

budget_s=0
if [[ ${1:-} == --budget-s ]]; then
  [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || fail "--budget-s needs a number of seconds"
  budget_s=$2
  shift 2
fi
database=build/release/compile_commands.json
[[ -f $database ]] || fail "there is no $database" "run: cmake --preset release"
command -v clang-tidy >/dev/null || fail "clang-tidy is missing" "run: tools/dev/install_packages.sh --checks"

# Of the names on standard input, each once, those that are compiled here (tests are read by the compiler only).
compiled() {
  awk '/^(core|cost_models|planner|kernels|runtime|profiler|tools)\/.*\.cpp$/ && !seen[$0]++' |
    while read -r file; do
      if [[ -f $file ]] && grep -qF "/$file\"" "$database"; then echo "$file"; fi
    done
}
changed() { # in the last COUNT commits, and what is not committed yet
  git diff --name-only HEAD
  git log -n "$1" --first-parent -m --name-only --pretty=
}

if [[ $# -gt 0 ]]; then
  files=("$@")
  must_read=("$@")
else
  mapfile -t must_read < <(changed 1 | compiled)
  mapfile -t files < <({ changed 30; git ls-files; } | compiled)
fi
[[ ${#files[@]} -gt 0 ]] || fail "no file to read" "is $database of this tree?"

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
export results
lint_one() {
  local file=$1 out
  out=$results/$(tr / _ <<<"$file")
  [[ $(date +%s) -lt $end_time ]] || return 0
  if clang-tidy -p build/release --quiet --warnings-as-errors='*' --extra-arg=-Wno-unknown-warning-option \
    "$file" >"$out.log" 2>"$out.err"; then
    touch "$out.ok"
    echo "  ok    $file"
  else
    touch "$out.bad"
    echo "  FOUND $file"
    # A clang-tidy that could not read the file at all says so elsewhere.
    grep -E '(warning|error):' "$out.log" | sort -u | sed "s|$PWD/||; s/^/        /" || tail -3 "$out.err"
  fi
}
export -f lint_one
end_time=$(($(date +%s) + (budget_s > 0 ? budget_s : 1 << 30)))
export end_time
printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -I{} bash -c 'lint_one "$1"' _ {}

was_read() { compgen -G "$results/$(tr / _ <<<"$1").[ob]*" >/dev/null; }
unread=()
for file in "${files[@]}"; do was_read "$file" || unread+=("$file"); done
bad=$(find "$results" -name '*.bad' | wc -l)
say "clang-tidy read $((${#files[@]} - ${#unread[@]})) of ${#files[@]} files in $SECONDS s: $bad with findings."
status=$((bad > 0))
if [[ ${#unread[@]} -gt 0 ]]; then
  say "NOT READ, for the $budget_s s were over: ${#unread[@]} of ${#files[@]} files:" "${unread[*]}"
  for file in "${must_read[@]}"; do
    was_read "$file" || { say "$file changed last and was not read: this is no pass."; status=1; }
  done
fi
exit "$status"
