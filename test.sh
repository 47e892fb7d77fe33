#!/usr/bin/env bash
# Installs packages, builds everything and runs all tests; ends with ctest's summary.
#   ./test.sh                     release build, every test but the nightly ones
#   ./test.sh --preset asan       another preset of CMakePresets.json (release, ci, nightly, asan, tsan)
#   ./test.sh --configure         packages and configuring alone
#   ./test.sh -R plan             what follows goes to ctest: here, only tests whose name has "plan"
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/tools/dev/common.sh"

preset=release configure_only=false
case ${1:-} in
  -h | --help) sed -n '2,6s/^# \{0,1\}//p' test.sh; exit 0 ;;
  --preset)
    [[ $# -ge 2 ]] || fail "--preset needs a name" "known: release, ci, nightly, asan, tsan"
    preset=$2
    shift 2
    ;;
  --configure)
    configure_only=true
    [[ $# -eq 1 ]] || fail "--configure stands alone" "known: ./test.sh --help"
    ;;
esac

step "Packages"
tools/dev/install_packages.sh --tests
[[ $preset != tsan ]] || tools/dev/thread_sanitized_tbb.sh
configure "$preset" ON
if $configure_only; then exit 0; fi
build "$preset"
step "Testing"
status=0
# One more than there are processors: some tests wait for others' time limits, sockets and files most of the time.
ctest --preset "$preset" --parallel $(($(nproc) + 1)) "$@" || status=$?
if [[ $status -ne 0 ]]; then
  say "Some tests failed: ctest --preset $preset --rerun-failed shows them again."
fi
exit "$status"
