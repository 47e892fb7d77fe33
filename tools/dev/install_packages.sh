#!/usr/bin/env bash
# Installs the Debian packages that building needs. Asks dpkg first and does nothing when all are there. Works as
# root and through sudo. With --tests also what the tests need, with --checks what .ci/run needs beside them (format,
# lint, a bare system, a cache for its compiler), with --fuzz what the fuzzers need, with --packages what
# tools/dev/make_packages.sh needs.
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

packages=(
  g++ cmake ninja-build pkg-config              # build
  libcli11-dev libfmt-dev nlohmann-json3-dev    # command line, text, JSON
  libtomlplusplus-dev libyaml-cpp-dev           # files of other frameworks
  libsqlite3-dev                                # exports of Nsight Systems
  libboost-dev libboost-graph-dev               # cluster graphs
  libeigen3-dev libnlopt-dev libnlopt-cxx-dev   # fits
  libtbb-dev zlib1g-dev libxxhash-dev           # threads, compressed traces, checksums
  libdnnl-dev                                   # CPU GEMMs
  libsentencepiece-dev libpcre2-dev libutf8proc-dev  # tokenizers
  libopenmpi-dev openmpi-bin                    # many processes
  libssl-dev                                    # proofs between processes that meet over TCP
  libjs-d3                                      # charts of reports
)
tests=(
  googletest libgtest-dev libgmock-dev librapidcheck-dev libbenchmark-dev
  libboost-context-dev                          # fibers of the emulated GPU
  python3                                       # reference values, checks of the house
)
for option in "$@"; do
  case $option in
    --tests) packages+=("${tests[@]}") ;;
    --checks) packages+=(clang-format clang-tidy shellcheck debootstrap ccache chromium) ;;  # the browser for reports
    --fuzz) packages+=(clang libclang-rt-14-dev) ;;
    --packages) packages+=(python3 python3-venv dpkg-dev file gzip) ;;
    --list) printf '%s\n' "${packages[@]}"; exit 0 ;;
    -h | --help)
      say "usage: tools/dev/install_packages.sh [--tests] [--checks] [--fuzz] [--packages] [--list]"
      say "Installs missing Debian packages; --list prints their names and installs nothing."
      exit 0
      ;;
    *) fail "unknown option $option" "try: tools/dev/install_packages.sh --help" ;;
  esac
done

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  say "This is no Debian system: packages are left alone. Needed, by their Debian names:"
  say "  ${packages[*]}"
  exit 0
fi

missing=()
for package in "${packages[@]}"; do
  [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
done
if [[ ${#missing[@]} -eq 0 ]]; then
  say "All ${#packages[@]} packages are installed."
  exit 0
fi

if [[ $(id -u) -eq 0 ]]; then
  as_root=()
elif command -v sudo >/dev/null; then
  as_root=(sudo)
else
  fail "${#missing[@]} packages are missing, and neither root nor sudo is at hand" \
    "as root, run: apt-get install --no-install-recommends ${missing[*]}"
fi

step "Installing ${#missing[@]} of ${#packages[@]} packages: ${missing[*]}"
"${as_root[@]}" apt-get update -q || say "(package lists could not be refreshed; trying with the ones at hand)"
install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends)
# An installation that was ended half way, this script's own perhaps, would be refused until it is finished.
if [[ -n $(dpkg --audit 2>/dev/null) || -n $(ls -A /var/lib/dpkg/updates 2>/dev/null) ]]; then
  step "Finishing an installation of packages that was interrupted"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive dpkg --configure -a || true
  "${install[@]}" --fix-broken || true
fi
"${install[@]}" "${missing[@]}" ||
  fail "apt-get could not install the packages; its message is above" \
    "check the network and /etc/apt/sources.list, then run this script again: it goes on where it stopped"
say "Packages installed."
