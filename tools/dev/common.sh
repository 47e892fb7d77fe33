# shellcheck shell=bash
# Shared by the scripts of this project: messages, and the root of the repository as working directory.
# Source it; it sets -euo pipefail and changes to the root, so that every script works from any folder.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
# Ninja's own number is two more, which on two processors takes 7 % longer.
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}

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

# The proxies through which apt asks, as assignments for env, one a line: those of the environment, else of apt's own configuration.
apt_proxies() {
  local scheme name value apt_proxy
  for scheme in http https; do
    name=${scheme}_proxy apt_proxy=""
    eval "$(apt-config shell apt_proxy "Acquire::$scheme::Proxy" 2>/dev/null || true)"
    value=${!name:-$apt_proxy}
    [[ -z $value || $value == DIRECT ]] || say "$name=$value"
  done
  [[ -z ${no_proxy:-} ]] || say "no_proxy=$no_proxy"
}

# configure PRESET ON|OFF: configures build/<preset's folder>, with or without tests. A folder that has the tests keeps
# them: to leave them out would delete what is built of them. SEXTANT_CMAKE_ARGS in the environment: more options of cmake.
configure() {
  local preset=$1 tests=$2 log more
  read -ra more <<<"${SEXTANT_CMAKE_ARGS:-}"
  [[ ! -e build/$preset/tests/cmake_install.cmake ]] || tests=ON # written once configuring has gone well with them
  step "Configuring (preset $preset)"
  log=$(mktemp)
  if ! cmake --preset "$preset" -DSEXTANT_TESTS="$tests" "${more[@]}" >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    fail "cmake could not configure the project" \
      "a package may be missing: run tools/dev/install_packages.sh --tests" \
      "a build folder of another place or compiler may be left over: remove build/ and try again"
  fi
  grep -E '^-- sextant: ' "$log" || true
  rm -f "$log"
}
# build PRESET [TARGET...]: builds the targets (default: all) where configure has been.
build() {
  local preset=$1
  shift
  step "Building (only what changed; the first time takes some minutes)"
  cmake --build --preset "$preset" ${1:+--target "$@"} ||
    fail "the build failed; the first error is above" "with less memory: CMAKE_BUILD_PARALLEL_LEVEL=1 $0"
}
