#!/usr/bin/env bash
# What a newcomer meets: makes a bare Debian 12, clones this working tree into its /root (uncommitted changes of tracked
# files included), and runs there, as root, the commands that README.md begins with. A machine that already has the
# packages hides a missing one; this one has git and nothing else.
#   tools/dev/fresh_machine.sh               both commands, as the README has them (half an hour on two cores)
#   tools/dev/fresh_machine.sh --quick       installs all packages, configures all, builds sextant the fast way, plans
#   ... --compile-cache FOLDER               with --quick: compiles only what differs from what .ci/run has compiled (compile_cache.sh),
#                                            once there is a file `complete` in the folder
#   ... --if-changed                         only if a commit of the last day touched packages, CMake files or these scripts
#   ... --dry-run                            prints what would be run, and ends
# It needs root, debootstrap and a Debian mirror: the one of this machine's apt sources, else deb.debian.org. Where that is
# missing, or nothing changed, it says so and ends with status 77 (skipped). The bare system is kept for a week in
# build/fresh_machine/, with a log of the last run. Everything else is gone when it ends.
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

release=bookworm
cache=build/fresh_machine
quick=false if_changed=false dry_run=false compile_cache=""
arguments=("$@")
while [[ $# -gt 0 ]]; do
  case $1 in
    --quick) quick=true ;;
    --if-changed) if_changed=true ;;
    --dry-run) dry_run=true ;;
    --compile-cache)
      [[ -d ${2:-} ]] || fail "--compile-cache needs a folder" "try: tools/dev/fresh_machine.sh --help"
      compile_cache=$(readlink -f "$2")
      shift
      ;;
    -h | --help) sed -n '2,14s/^# \{0,1\}//p' "tools/dev/$(basename "$0")"; exit 0 ;;
    *) fail "unknown option $1" "try: tools/dev/fresh_machine.sh --help" ;;
  esac
  shift
done
if [[ -n $compile_cache ]]; then
  $quick || fail "--compile-cache goes with --quick: both commands compile all of it by themselves"
  command -v ccache >/dev/null || fail "there is no ccache" "run: tools/dev/install_packages.sh --checks"
fi
skip() {
  say "SKIPPED: fresh machine: $*"
  exit 77
}
at() { printf '[%2d:%02d]' $((SECONDS / 60)) $((SECONDS % 60)); }

# The two commands that the README begins with: its first lines that are nothing but such a command and a comment.
readme_commands() {
  local script command
  for script in quickstart test; do
    command=$(sed -nE "s|^ *(\\$ )?(\./$script\.sh)( *#.*)?$|\2|p" README.md | head -1)
    [[ -n $command ]] || fail "README.md has no line with the command ./$script.sh"
    say "$command"
  done
}

# What can be wrong on a bare machine alone: packages, what CMake looks for, and these scripts.
watched=(quickstart.sh test.sh .ci/run CMakePresets.json ':(glob)**/CMakeLists.txt' ':(glob)**/*.cmake'
  tools/dev/common.sh tools/dev/install_packages.sh tools/dev/fresh_machine.sh)
# Who checks a clone of main cannot know which of its commits are new. A day before the last commit (not before now: the
# same commit gets the same answer tomorrow) holds whatever lands at once; a check too many costs minutes, one too few a fault.
what_changed() {
  local since
  if ! git rev-parse --quiet --verify HEAD^ >/dev/null; then
    say "(no history: everything)"
    return
  fi
  since=$(($(git log -1 --format=%ct) - 24 * 3600))
  {
    git diff --name-only HEAD -- "${watched[@]}"
    git log --first-parent -m --since="@$since" --name-only --format= -- "${watched[@]}" # what a merge brought, too
  } | sort -u
}

# Lines of sources.list: what this machine's apt asks for the release, else Debian's own server.
apt_lines() {
  local suite uri targets
  targets=$(apt-get indextargets --format '$(RELEASE) $(REPO_URI) $(COMPONENT)' 2>/dev/null || true)
  for suite in "$release" "$release-updates" "$release-security"; do
    uri=$(awk -v suite="$suite" '$1 == suite && $2 ~ /^https?:/ && $3 == "main" { print $2; exit }' <<<"$targets")
    if [[ -z $uri ]]; then
      uri=http://deb.debian.org/debian/
      [[ $suite != *-security ]] || uri=http://deb.debian.org/debian-security/
    fi
    say "deb $uri $suite main"
  done
}

git rev-parse --quiet --verify HEAD >/dev/null 2>&1 || skip "this folder is no git clone"
if $if_changed; then
  changed=$(what_changed)
  [[ -n $changed ]] || skip "no commit of the last day touched packages, CMake files or the scripts of a first build"
  say "Touched within a day of the last commit: $(paste -sd ' ' <<<"$changed")"
fi
commands=$(readme_commands) || exit 1
sources=$(apt_lines)
if $dry_run; then
  printf '%s\n' "$sources" "$commands"
  exit 0
fi
[[ $(id -u) -eq 0 ]] || skip "it needs root, to make a system and to change into it"
for program in debootstrap unshare chroot mount; do
  command -v "$program" >/dev/null || skip "there is no $program (tools/dev/install_packages.sh --checks)"
done
log=$PWD/$cache/full.log
if $quick; then log=$PWD/$cache/quick.log; fi

# What follows runs twice: here, and called by itself as the first process of a namespace of mounts and processes. Whatever
# ends that process takes all of them away.
root=${SEXTANT_FRESH_ROOT:-}
if [[ -z $root ]]; then
  root=$(mktemp -d "${TMPDIR:-/var/tmp}/sextant-fresh-XXXXXX")
  child=""
  cleanup() {
    trap '' INT TERM
    if [[ -n $child ]]; then
      kill -KILL "$child" 2>/dev/null || true
      wait "$child" 2>/dev/null || true
    fi
    rm -rf --one-file-system "$root"
  }
  trap cleanup EXIT
  trap 'say "interrupted: cleaning up"; exit 130' INT
  trap 'say "ended from outside: cleaning up"; exit 143' TERM
  in_namespace=(unshare --mount --pid --fork --kill-child)
  "${in_namespace[@]}" mount -t tmpfs none "$root" 2>/dev/null || skip "root may not mount here, not even in a namespace"
  mkdir -p "$cache"
  : >"$log"
  set -m # a process group of its own: a signal is for this script, which ends the other
  SEXTANT_FRESH_ROOT=$root "${in_namespace[@]}" "$BASH" "tools/dev/$(basename "$0")" "${arguments[@]}" </dev/null &
  child=$!
  set +m
  status=0
  wait "$child" || status=$?
  child=""
  exit "$status"
fi

# Prints the lines that tell where it is, and one a minute of the others; all of them go to the log.
follow() {
  local line last=$SECONDS
  while IFS= read -r line; do
    printf '%s\n' "$line" >>"$log"
    if [[ $line =~ ^(== |E: |FAILED|CMake Error|-- sextant) || $line =~ tests\ (passed|failed) || $line =~ \((Failed|Timeout)\) ||
      $((SECONDS - last)) -ge 60 ]]; then
      printf '%s   %.110s\n' "$(at)" "$line"
      last=$SECONDS
    fi
  done
}
mapfile -t proxies < <(apt_proxies)

available_GiB() { # of memory: the machine's, or what a container may use if that is less
  local kib limit
  kib=$(awk '/^MemAvailable/ { print $2 }' /proc/meminfo)
  limit=$(cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null | grep -E '^[0-9]+$' | head -1)
  [[ -z $limit || $((limit >> 10)) -ge $kib ]] || kib=$((limit >> 10))
  echo $((kib >> 20))
}
step "A bare Debian 12"
if $quick && [[ $(available_GiB) -ge 8 ]]; then
  mount -t tmpfs -o size=6g tmpfs "$root" # it needs 2 GiB; some disks take longer to delete them than to build
else
  mount --bind "$root" "$root" # so that / is a mount, which who mounts in there takes for granted
fi
archive=$PWD/$cache/$release-$(dpkg --print-architecture).tar.gz
first_source=$(awk '{ print $2; exit }' <<<"$sources")
if [[ -n $(find "$archive" -mtime -7 2>/dev/null) ]]; then
  tar -C "$root" -xzf "$archive"
  say "$(at) unpacked ${archive#"$PWD/"}"
else
  say "$(at) debootstrap $release from $first_source"
  # Nothing of the project has been run yet: a server that does not answer, or a machine that forbids it, is no fault of it.
  env "${proxies[@]}" debootstrap --force-check-gpg --variant=minbase --include=git,ca-certificates "$release" "$root" \
    "$first_source" 2>&1 | follow ||
    skip "debootstrap could not make a system: $(tail -n 2 "$log" | paste -sd ' ') (all of it: $log)"
  chroot "$root" apt-get clean
  tar -C "$root" -cf - . | gzip -1 >"$archive.new"
  mv "$archive.new" "$archive"
fi
chmod 755 "$root" # as every / is; mktemp made it
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
cp -L /etc/hosts /etc/resolv.conf "$root/etc/"
say "$sources" >"$root/etc/apt/sources.list"
echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/fast" # what is thrown away need not survive a power cut

# Where the working tree lies there. What was compiled elsewhere is found again at the same path alone: CMake writes paths of sources
# into those that it compiles several at once.
place=/root/sextant
[[ -z $compile_cache ]] || place=$PWD
# Runs a command line as root in that folder, or in /root before there is one, with the environment and the signals of a first log-in.
run() {
  local status=0 start=$SECONDS
  say "$(at) root@bare:~\$ $1"
  chroot "$root" env --default-signal -i HOME=/root USER=root LOGNAME=root SHELL=/bin/bash TERM=dumb \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    ${CMAKE_BUILD_PARALLEL_LEVEL:+CMAKE_BUILD_PARALLEL_LEVEL="$CMAKE_BUILD_PARALLEL_LEVEL"} "${proxies[@]}" \
    bash -c 'cd && if [ -d "$2" ]; then cd "$2"; fi && eval "$1"' _ "$1" "$place" 2>&1 | follow || status=$?
  if [[ $status -ne 0 ]]; then
    tail -n 40 "$log" | sed 's/^/  | /'
    fail "a fresh machine fails at: $1 (status $status, after $((SECONDS - start)) s)" "all of its output: $log"
  fi
  say "$(at) ended well after $((SECONDS - start)) s"
}

step "The working tree in it"
commit=$(git stash create) || fail "git could not gather the changes of the working tree"
[[ -n $commit ]] || commit=$(git rev-parse HEAD)
git init --quiet --bare "$root/srv/sextant.git"
git -C "$root/srv/sextant.git" config receive.shallowUpdate true
git push --quiet "$root/srv/sextant.git" "$commit:refs/heads/main"
git -C "$root/srv/sextant.git" symbolic-ref HEAD refs/heads/main
run "git clone --quiet /srv/sextant.git $(printf %q "$place")"

if $quick; then
  step "Quick: the same commands as far as a plan and the configuring of the tests"
  # The same scripts as far as they go; seconds count here, not the program's speed.
  fast="SEXTANT_CMAKE_ARGS='-DSEXTANT_NATIVE=OFF -DCMAKE_CXX_FLAGS_RELEASE=-Og'"
  if [[ -n $compile_cache ]]; then # compiled as .ci/run does, by its ccache, which is no package of this machine
    there=/opt/compile_cache
    mkdir -p "$root$there/cache" "$root$there/lib"
    mount --bind "$compile_cache" "$root$there/cache"
    ldd "$(command -v ccache)" | grep -oE '/[^ ]+' | xargs cp -L -t "$root$there/lib"
    cp "$(command -v ccache)" "$root$there/ccache.program"
    {
      say '#!/bin/bash'
      printf 'source %q %q\n' "$place/tools/dev/compile_cache.sh" "$there/cache"
      say "export CCACHE_STATSLOG=$there/of_this_machine"
      say "exec $there/lib/ld-linux-*.so.* --library-path $there/lib $there/ccache.program \"\$@\""
    } >"$root$there/ccache"
    chmod +x "$root$there/ccache"
    run "tools/dev/install_packages.sh" # meanwhile
    [[ -e $compile_cache/complete ]] || say "$(at) waiting for $compile_cache/complete: what .ci/run compiles"
    until [[ -e $compile_cache/complete ]]; do sleep 1; done
    fast="CMAKE_CXX_COMPILER_LAUNCHER=$there/ccache SEXTANT_CMAKE_ARGS=-DSEXTANT_WERROR=ON"
  fi
  run "$fast ./quickstart.sh --until-plan"
  if [[ -n $compile_cache ]]; then chroot "$root" "$there/ccache" --show-log-stats | sed -nE 's/^ *(Hits|Misses): */\1 of the compile cache: /p' | head -2; fi
  run "$fast ./test.sh --configure"
  run "tools/dev/install_packages.sh --tests --checks"
else
  step "The commands of README.md"
  while read -r command; do run "$command"; done <<<"$commands"
fi
say "A fresh machine works: $((SECONDS / 60)) min $((SECONDS % 60)) s."
