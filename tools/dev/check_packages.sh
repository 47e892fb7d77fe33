#!/usr/bin/env bash
# Does install_packages.sh list every Debian package that the build uses? A machine that has a package cannot tell that
# the list lacks it; the build folder can: it knows each header, library and CMake file used, and dpkg knows whose they are.
#   tools/dev/check_packages.sh BUILD_FOLDER                      status 1 where one is in no listed package
#   tools/dev/check_packages.sh BUILD_FOLDER --without PACKAGE    as if the list lacked it: must fail
# A listed package brings its dependencies along, a bare Debian its own. What is outside tests/ must do with the list
# that has no --tests. Another compiler and the CUDA toolkit are nobody's duty: their packages are left out. Status 77: this
# is no Debian system.
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"
usage="usage: tools/dev/check_packages.sh BUILD_FOLDER [--without PACKAGE]"
[[ $# -eq 1 || ($# -eq 3 && $2 == --without) ]] || fail "$usage"
folder=$1 without=${3:-}
[[ -f $folder/build.ninja ]] || fail "$folder is no build folder of Ninja" "$usage"
command -v dpkg-query >/dev/null || { say "SKIPPED: no dpkg, so nobody knows which package a file is of"; exit 77; }
# By name: compilers and what comes with them, and NVIDIA's packages.
nobodys='^(gcc|g[+][+]|clang|libclang|llvm|libgcc|libstdc[+][+]|cuda|nvidia|libcu(blas|dnn|pti|rand|s)|libnccl|libnv)'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What is installed along with the packages on standard input, and with a bare system that has git. Of alternatives, any.
brought_along() {
  {
    cat
    echo git
    dpkg-query -W -f '${Essential} ${Priority} ${Package}\n' | awk '$1 == "yes" || $(NF - 1) == "required" { print $NF }'
  } >"$work/roots"
  dpkg-query -W -f '${db:Status-Status}\t${Package}\t${Pre-Depends}, ${Depends}\t${Provides}\n' | awk -F '\t' '
    function plain(names) { gsub(/\([^)]*\)|:[a-z0-9]+|[ ]/, "", names); return names }
    FNR == NR { if ($1) queue[n++] = $1; next }
    $1 == "installed" {
      installed[$2] = 1
      needs[$2] = plain($3)
      m = split(plain($4), provided, ",")
      for (i = 1; i <= m; ++i) providers[provided[i]] = providers[provided[i]] "," $2
    }
    END {
      for (at = 0; at < n; ++at) {
        m = split(queue[at] providers[queue[at]], reached, ",")
        for (i = 1; i <= m; ++i) {
          if (!installed[reached[i]] || seen[reached[i]]++) continue
          print reached[i]
          k = split(needs[reached[i]], next_ones, /[,|]/)
          for (j = 1; j <= k; ++j) if (next_ones[j]) queue[n++] = next_ones[j]
        }
      }
    }' "$work/roots" - | sort -u
}
# "build FILE" or "tests FILE" for each file of the system that something built was made from.
used_files() {
  ninja -C "$folder" -t deps | awk '
    /^[^ ]/ { part = /^tests\// ? "tests" : "build" }
    /^    \/usr\// && !seen[part, $1]++ { print part, $1 }'
  awk '/^build / { part = / tests\// ? "tests" : "build" }  # a program that links one object of the tests is theirs
    /^  LINK_LIBRARIES/ { for (i = 1; i <= NF; ++i) if ($i ~ /^\/usr\/.*\.(so|a)$/ && !seen[part, $i]++) print part, $i }' \
    "$folder/build.ninja"
  # CMake does not keep who asked for a package, so that the tests' list may have it.
  sed -nE 's/^[A-Za-z0-9_]+_DIR:PATH=(\/usr\/.+)$/tests \1/p; s/^MPIEXEC_EXECUTABLE:FILEPATH=(.+)$/tests \1/p' \
    "$folder/CMakeCache.txt"
}

used_files >"$work/named"
# By their real names: /usr/bin/mpiexec is whose it leads to.
paste -d ' ' <(cut -d ' ' -f 1 "$work/named") <(cut -d ' ' -f 2 "$work/named" | xargs realpath -m) | sort -u >"$work/used"
cut -d ' ' -f 2 "$work/used" | sort -u | xargs dpkg-query -S 2>/dev/null |
  sed -nE 's/^([^:, ]+)[^ ]*: (\/.*)$/\2 \1/p' | sort -u >"$work/owners" || true
status=0
for part in build tests; do
  options=(--list)
  [[ $part == build ]] || options=(--tests --list)
  tools/dev/install_packages.sh "${options[@]}" | grep -vxF "$without" | brought_along >"$work/listed"
  awk -v part="$part" -v nobodys="$nobodys" '
    FILENAME ~ /listed$/ { listed[$1] = 1; next }
    FILENAME ~ /owners$/ { owner[$1] = $2; next }
    $1 == part && ($2 in owner) && !listed[owner[$2]] && owner[$2] !~ nobodys {
      if (!seen[owner[$2]]++) print "  " owner[$2] " has " $2
    }' \
    "$work/listed" "$work/owners" "$work/used" >"$work/missing"
  if [[ -s $work/missing ]]; then
    say "tools/dev/install_packages.sh ${options[*]} lacks these, which are used:"
    cat "$work/missing"
    status=1
  fi
done
say "$(wc -l <"$work/owners") files of $(cut -d ' ' -f 2 "$work/owners" | sort -u | wc -l) packages are used in $folder."
exit "$status"
