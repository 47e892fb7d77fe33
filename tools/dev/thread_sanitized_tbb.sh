#!/usr/bin/env bash
# Builds Debian's TBB for ThreadSanitizer, from Debian's sources, into build/tbb_thread, where the preset tsan finds it. Without it
# the sanitizer sees neither what the threads of a parallel loop hand to each other nor which of their accesses are races. A minute
# on two cores; done once for each version of the package. Works as root and as a user; installs nothing.
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

case ${1:-} in
  "") ;;
  -h | --help) sed -n '2,4s/^# \{0,1\}//p' tools/dev/thread_sanitized_tbb.sh; exit 0 ;;
  *) fail "unknown option $1" "it takes none" ;;
esac

out=$PWD/build/tbb_thread
version=$(dpkg-query -W -f '${source:Version}' libtbb-dev 2>/dev/null) ||
  fail "libtbb-dev is not installed, or this is no Debian system" "run: tools/dev/install_packages.sh --tests"
if [[ -f $out/version && $(<"$out/version") == "$version" ]]; then
  say "TBB $version for ThreadSanitizer is in build/tbb_thread."
  exit 0
fi
command -v dpkg-source >/dev/null || fail "dpkg-source is missing" "as root, run: apt-get install --no-install-recommends dpkg-dev xz-utils"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The same archives as for packages, asked for sources: apt's own lists stay as they are.
mkdir -p "$work/parts" "$work/lists/partial"
for list in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
  [[ ! -f $list ]] || sed -n 's/^deb /deb-src /p' "$list" >>"$work/parts/sources.list"
done
for list in /etc/apt/sources.list.d/*.sources; do
  [[ ! -f $list ]] || sed 's/^Types:.*/Types: deb-src/' "$list" >"$work/parts/$(basename "$list")"
done
apt=(apt-get -q -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$work/parts" -o Dir::State::Lists="$work/lists"
     -o APT::Sandbox::User=root)
step "Sources of TBB $version"
cd "$work" || exit
"${apt[@]}" update >"$work/log" 2>&1 && "${apt[@]}" source "onetbb=$version" >>"$work/log" 2>&1 || {
  cat "$work/log" >&2
  fail "apt-get found no sources of onetbb $version; its messages are above" "check the network and /etc/apt/sources.list"
}
sources=("$work"/onetbb-*/)
step "Building TBB for ThreadSanitizer"
cmake -S "${sources[0]}" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_INSTALL_PREFIX="$out" -DCMAKE_INSTALL_LIBDIR=lib \
  -DTBB_SANITIZE=thread -DTBB_TEST=OFF -DTBB_STRICT=OFF -DTBB_ENABLE_IPO=OFF -DTBBMALLOC_BUILD=OFF >"$work/log" 2>&1 &&
  cmake --build "$work/build" --target install >>"$work/log" 2>&1 || {
  cat "$work/log" >&2
  fail "TBB could not be built; the first error is above"
}
printf '%s\n' "$version" >"$out/version"
say "Done: build/tbb_thread. Configure anew: cmake --preset tsan"
