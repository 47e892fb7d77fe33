#!/usr/bin/env bash
# Formats all C++ and CUDA sources with clang-format; with --check only says which files would change.
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"

command -v clang-format >/dev/null || fail "clang-format is missing" "run: tools/dev/install_packages.sh --checks"
# New files too, which git does not track yet.
mapfile -t files < <(git ls-files --cached --others --exclude-standard -- '*.cpp' '*.hpp' '*.cu' '*.cuh')
if [[ ${1:-} == --check ]]; then
  printf '%s\0' "${files[@]}" | xargs -0 clang-format --dry-run -Werror ||
    fail "some files are not formatted" "run: tools/dev/format.sh"
  say "${#files[@]} files are formatted."
else
  printf '%s\0' "${files[@]}" | xargs -0 clang-format -i
  say "${#files[@]} files formatted."
fi
