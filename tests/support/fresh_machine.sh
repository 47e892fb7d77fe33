#!/usr/bin/env bash
# What tools/dev/fresh_machine.sh decides before it makes a system: the README's commands, and when there is nothing to do.
# Usage: fresh_machine.sh SOURCE_FOLDER
set -euo pipefail
source_folder=$1
command -v git >/dev/null || { echo "SKIPPED: no git"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/tools/dev" "$folder/core"
cp "$source_folder"/tools/dev/{common,fresh_machine}.sh "$folder/tools/dev"
cp "$source_folder/README.md" "$folder"
cd "$folder"
failures=0
wants() { # WHAT STATUS WORDS COMMAND...
  local what=$1 status=$2 words=$3 got=0 out
  shift 3
  out=$("$@" 2>&1) || got=$?
  if [[ $got -ne $status || $out != *"$words"* ]]; then
    printf '%s: ended with %s, wanted %s and "%s"; it printed\n%s\n' "$what" "$got" "$status" "$words" "$out"
    failures=$((failures + 1))
  fi
}
commit() { # DAY FILE
  echo "$1" >>"$2"
  git add "$2"
  GIT_COMMITTER_DATE="2026-01-$1T12:00:00Z" git -c user.name=a -c user.email=a@b commit --quiet -m "$2"
}
fresh=tools/dev/fresh_machine.sh

wants "no clone" 77 "no git clone" env GIT_CEILING_DIRECTORIES="$(dirname "$folder")" "$fresh" --dry-run
git init --quiet
git add .
commit 01 core/CMakeLists.txt
wants "no history" 0 "(no history: everything)" "$fresh" --quick --if-changed --dry-run
commit 02 notes.txt
commit 02 core/CMakeLists.txt
commit 03 notes.txt
wants "CMake, a day ago" 0 core/CMakeLists.txt "$fresh" --if-changed --dry-run
commit 05 notes.txt
wants "nothing of a build" 77 "SKIPPED: fresh machine: no commit of the last day" "$fresh" --quick --if-changed --dry-run
wants "asked for all the same" 0 ./test.sh "$fresh" --dry-run
echo >>core/CMakeLists.txt
wants "not committed yet" 0 core/CMakeLists.txt "$fresh" --if-changed --dry-run

wants "both commands" 0 $'./quickstart.sh\n./test.sh' "$fresh" --dry-run
sed -i 's|^ *\./test.sh|    make test|' README.md
wants "another README" 1 "has no line with the command ./test.sh" "$fresh" --dry-run
wants "an option that is none" 1 "unknown option --fast" "$fresh" --fast
wants "a cache that is none" 1 "--compile-cache needs a folder" "$fresh" --quick --compile-cache nowhere
wants "a cache for both commands" 1 "--compile-cache goes with --quick" "$fresh" --compile-cache .
if [[ $(id -u) -eq 0 ]] && command -v setpriv >/dev/null; then
  chmod -R a+rX "$folder"
  git checkout --quiet README.md
  wants "another user" 77 "SKIPPED: fresh machine: it needs root" env GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory \
    GIT_CONFIG_VALUE_0='*' setpriv --reuid 65534 --clear-groups "$fresh" --quick
fi
[[ $failures -eq 0 ]]
