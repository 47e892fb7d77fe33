#!/usr/bin/env bash
# Makes all packages of the working tree: make.sh SOURCE_FOLDER. Status 77: skipped, with the reason.
set -euo pipefail
make=$1/tools/dev/make_packages.sh
if refusal=$("$make" rpm 2>&1) || [[ $refusal != *"known: wheel tarball deb"* ]]; then
  echo "FAILED: a package of an unknown kind was not refused: $refusal"
  exit 1
fi
for program in python3 dpkg-shlibdeps; do
  command -v "$program" >/dev/null || { echo "SKIPPED: no $program (tools/dev/install_packages.sh --packages)"; exit 77; }
done
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" >/dev/null 2>&1 || { echo "SKIPPED: python3 cannot make environments"; exit 77; }
"$folder/venv/bin/pip" download --quiet --no-deps --dest "$folder" scikit-build-core 2>/dev/null ||
  { echo "SKIPPED: pip reaches no index of packages"; exit 77; }
"$make"
