# shellcheck shell=bash
# Shared by the scripts of this project: messages, and the root of the repository as working directory.
# Source it; it sets -euo pipefail and changes to the root, so that every script works from any folder.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."

if [[ -t 1 && -z "${NO_COLOR:-}" && "${TERM:-dumb}" != dumb ]]; then
  bold=$'\e[1m' red=$'\e[31m' plain=$'\e[0m'
else
  bold="" red="" plain=""
fi

say() { printf '%s\n' "$*"; }
step() { printf '%s== %s%s\n' "$bold" "$*" "$plain"; }
fail() {
  printf '%s%s: %s%s\n' "$red" "$(basename "$0")" "$1" "$plain" >&2
  shift
  for line in "$@"; do printf '  %s\n' "$line" >&2; done
  exit 1
}

# configure_and_build PRESET [TARGET...]: configures build/<preset's folder> and builds the targets (default: all).
configure_and_build() {
  local preset=$1 log
  shift
  step "Configuring (preset $preset)"
  log=$(mktemp)
  if ! cmake --preset "$preset" >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    fail "cmake could not configure the project" \
      "a package may be missing: run tools/dev/install_packages.sh" \
      "a build folder of another place or compiler may be left over: remove build/ and try again"
  fi
  grep -E '^-- sextant: ' "$log" || true
  rm -f "$log"
  step "Building (only what changed; the first time takes some minutes)"
  cmake --build --preset "$preset" ${1:+--target "$@"} ||
    fail "the build failed; the first error is above" "with less memory: CMAKE_BUILD_PARALLEL_LEVEL=1 $0"
}
