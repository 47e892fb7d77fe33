#!/usr/bin/env bash
# Installs packages, builds everything and runs all tests; ends with ctest's summary.
#   ./test.sh                     release build, all tests
#   ./test.sh --preset asan       another preset of CMakePresets.json (release, ci, asan, tsan)
#   ./test.sh -R plan             what follows goes to ctest: here, only tests whose name has "plan"
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/tools/dev/common.sh"

preset=release
case ${1:-} in
  -h | --help) sed -n '2,5s/^# \{0,1\}//p' "$0"; exit 0 ;;
  --preset)
    [[ $# -ge 2 ]] || fail "--preset needs a name" "known: release, ci, asan, tsan"
    preset=$2
    shift 2
    ;;
esac

step "Packages"
tools/dev/install_packages.sh --tests
configure_and_build "$preset" ON
step "Testing"
status=0
ctest --preset "$preset" --parallel "$(nproc)" "$@" || status=$?
if [[ $status -ne 0 ]]; then
  say "Some tests failed: ctest --preset $preset --rerun-failed shows them again."
fi
exit "$status"
