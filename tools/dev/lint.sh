#!/usr/bin/env bash
# Runs clang-tidy (.clang-tidy) over the compiled sources of the rooms, newest change first, until the time
# budget is used up; says how many files it reached. Findings end it with status 1.
#   tools/dev/lint.sh [--budget-s SECONDS] [FILE...]
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

budget_s=0
if [[ ${1:-} == --budget-s ]]; then
  budget_s=$2
  shift 2
fi
database=build/release/compile_commands.json
[[ -f $database ]] || fail "there is no $database" "run: cmake --preset release"
command -v clang-tidy >/dev/null || fail "clang-tidy is missing" "run: tools/dev/install_packages.sh --checks"

if [[ $# -gt 0 ]]; then
  files=("$@")
else
  # Newest first: files of the last commits, then the rest; only what the build compiles.
  mapfile -t files < <({
    git log -n 30 --name-only --pretty= -- 'core/*.cpp' 'cost_models/*.cpp' 'planner/*.cpp' 'tools/*.cpp'
    git ls-files -- 'core/*.cpp' 'cost_models/*.cpp' 'planner/*.cpp' 'tools/*.cpp'
  } | awk '!seen[$0]++' | while read -r file; do
    [[ -f $file ]] && grep -qF "/$file\"" "$database" && echo "$file"
  done)
fi

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
export results
lint_one() {
  local file=$1 out
  out=$results/$(tr / _ <<<"$file")
  [[ $(date +%s) -lt $end_time ]] || return 0
  if clang-tidy -p build/release --quiet --warnings-as-errors='*' --extra-arg=-Wno-unknown-warning-option \
    "$file" >"$out.log" 2>/dev/null; then
    touch "$out.ok"
    echo "  ok    $file"
  else
    touch "$out.bad"
    echo "  FOUND $file"
    grep -E '(warning|error):' "$out.log" | sort -u | sed "s|$PWD/||; s/^/        /"
  fi
}
export -f lint_one
end_time=$(($(date +%s) + (budget_s > 0 ? budget_s : 1 << 30)))
export end_time
printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -I{} bash -c 'lint_one "$1"' _ {}
count() { find "$results" -name "*.$1" | wc -l; }
say "clang-tidy read $(($(count ok) + $(count bad))) of ${#files[@]} files in $SECONDS s: $(count bad) with findings."
[[ $(count bad) -eq 0 ]]
