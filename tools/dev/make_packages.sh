#!/usr/bin/env bash
# Makes the packages of this working tree in build/packages/: a wheel, a tarball that runs from any folder, and a .deb for this Debian.
#   tools/dev/make_packages.sh                  all three (some ten minutes on two cores; again: what changed)
#   tools/dev/make_packages.sh wheel tarball    these alone
# Wheel and tarball plan, simulate and train on CPU ranks; they bring their libraries and need a C library as new as this machine's. The
# .deb has MPI and oneDNN from Debian, and the GPU backend where the CUDA toolkit is found. SEXTANT_CMAKE_ARGS: more options of cmake.
# The wheel needs Python packages (scikit-build-core, auditwheel, wheel), which pip installs into build/packages/venv.
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

all=(wheel tarball deb)
asked=("$@")
for kind in "${asked[@]}"; do
  case $kind in
    wheel | tarball | deb) ;;
    -h | --help) sed -n '2,7s/^# \{0,1\}//p' "tools/dev/$(basename "$0")"; exit 0 ;;
    *) fail "unknown package '$kind'" "known: ${all[*]}" ;;
  esac
done
[[ ${#asked[@]} -gt 0 ]] || asked=("${all[@]}")
is_asked() { [[ " ${asked[*]} " == *" $1 "* ]]; }

folder=build/packages
mkdir -p "$folder"
read -ra more <<<"${SEXTANT_CMAKE_ARGS:-}"
# The same commit gives the same dates, in the manual and in archives.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
made=()

# quietly WHAT COMMAND...: its output goes to build/packages/WHAT.log, and here when it fails.
quietly() {
  local log=$folder/$1.log begun=$SECONDS
  shift
  "$@" >"$log" 2>&1 || {
    tail -n 30 "$log" >&2
    fail "this failed: $*" "all of its output: $log"
  }
  say "   $((SECONDS - begun)) s"
}
# keep FILE...: the one file that was made, as the only one of its kind in build/packages.
keep() {
  local kind=${1##*.}
  [[ $# -eq 1 && -f $1 ]] || fail "expected one new .$kind, found: $*"
  rm -f "$folder"/*."$kind"
  mv "$1" "$folder/"
  made+=("$folder/$(basename "$1")")
}

step "Packages of the build"
tools/dev/install_packages.sh --packages

if is_asked wheel; then
  step "Python packages of the build"
  [[ -x $folder/venv/bin/pip ]] || python3 -m venv "$folder/venv" || fail "python3 cannot make an environment" "see above"
  quietly pip "$folder/venv/bin/pip" install --quiet scikit-build-core auditwheel wheel
  step "Wheel"
  rm -rf "$folder/made"
  quietly wheel env CMAKE_ARGS="${more[*]}" "$folder/venv/bin/pip" wheel . --verbose --no-deps --no-build-isolation \
    --wheel-dir "$folder/made" --config-settings "build-dir=$folder/portable"
  # It holds every library but the C library's. Which that must be, its name says: pip refuses it where that is older.
  raw=("$folder"/made/*.whl)
  quietly auditwheel "$folder/venv/bin/auditwheel" show "${raw[0]}"
  tag=$(grep -oE '"manylinux_[0-9]+_[0-9]+_[a-z0-9_]+"' "$folder/auditwheel.log" | head -1 | tr -d '"')
  [[ -n $tag ]] || fail "auditwheel finds no C library that suits ${raw[0]}" "its answer: $folder/auditwheel.log"
  "$folder/venv/bin/python" -m wheel tags --remove --platform-tag "$tag" "${raw[0]}" >/dev/null
  keep "$folder"/made/*.whl
fi

if is_asked tarball; then
  step "Tarball"
  quietly tarball cmake -S . -B "$folder/portable" -G Ninja -DCMAKE_BUILD_TYPE=Release -DSKBUILD=OFF -DSEXTANT_TESTS=OFF \
    -DSEXTANT_CUDA=OFF -DSEXTANT_MPI=OFF -DSEXTANT_ONEDNN=OFF -DSEXTANT_NATIVE=OFF -DSEXTANT_BUNDLE=ON "${more[@]}"
  quietly tarball cmake --build "$folder/portable" --target sextant
  rm -rf "$folder/portable/packages"
  quietly tarball cpack -G TGZ -B "$folder/portable/packages" --config "$folder/portable/CPackConfig.cmake"
  keep "$folder"/portable/packages/*.gz
fi

if is_asked deb; then
  step "Debian package"
  quietly deb cmake -S . -B "$folder/debian" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=/usr -DSEXTANT_TESTS=OFF \
    -DSEXTANT_NATIVE=OFF "${more[@]}"
  quietly deb cmake --build "$folder/debian" --target sextant
  rm -rf "$folder/debian/packages"
  quietly deb cpack -G DEB -B "$folder/debian/packages" --config "$folder/debian/CPackConfig.cmake"
  keep "$folder"/debian/packages/*.deb
fi

step "Made in $((SECONDS / 60)) min $((SECONDS % 60)) s"
for file in "${made[@]}"; do say "$(du -h "$file" | cut -f1)  $file"; done
