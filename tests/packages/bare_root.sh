#!/usr/bin/env bash
# Installs the packages of build/packages into a bare Debian 12 that has python3 and neither compiler nor libraries, as a user does: the
# wheel by pip, the tarball unpacked anywhere, the .deb by dpkg and apt.
#   tests/packages/bare_root.sh SOURCE_FOLDER [PACKAGE_FOLDER]      status 77: skipped, with the reason
# It needs root, debootstrap and a Debian mirror. Everything that it makes is gone when it ends.
set -euo pipefail
source_folder=$(readlink -f "$1")
packages=$(readlink -f "${2:-$source_folder/build/packages}")
skip() {
  echo "SKIPPED: bare root: $*"
  exit 77
}
[[ $(id -u) -eq 0 ]] || skip "it needs root, to make a system and to change into it"
for program in debootstrap unshare chroot mount; do
  command -v "$program" >/dev/null || skip "there is no $program (tools/dev/install_packages.sh --checks)"
done
for kind in whl deb gz; do
  compgen -G "$packages/*.$kind" >/dev/null || skip "no .$kind in $packages: run tools/dev/make_packages.sh"
done

# As the first process of a namespace of mounts and processes: whatever ends it takes all of them away.
if [[ -z ${SEXTANT_BARE_ROOT:-} ]]; then
  SEXTANT_BARE_ROOT=$(mktemp -d "${TMPDIR:-/var/tmp}/sextant-bare-XXXXXX")
  export SEXTANT_BARE_ROOT
  trap 'rm -rf --one-file-system "$SEXTANT_BARE_ROOT"' EXIT
  unshare --mount --pid --fork --kill-child true 2>/dev/null || skip "root may not mount here, not even in a namespace"
  unshare --mount --pid --fork --kill-child "$BASH" "$0" "$source_folder" "$packages"
  exit
fi
root=$SEXTANT_BARE_ROOT
source "$source_folder/tools/dev/common.sh"
mapfile -t proxies < <(apt_proxies)
sources=$("$source_folder/tools/dev/fresh_machine.sh" --dry-run | grep '^deb ') || skip "no sources of apt are known"
echo "== debootstrap"
env "${proxies[@]}" debootstrap --variant=minbase --include=python3,python3-venv bookworm "$root" \
  "$(awk '{ print $2; exit }' <<<"$sources")" >"$root.log" 2>&1 ||
  { tail -2 "$root.log"; rm -f "$root.log"; skip "debootstrap could not make a system"; }
rm -f "$root.log"
chmod 755 "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
cp -L /etc/hosts /etc/resolv.conf "$root/etc/"
echo "$sources" >"$root/etc/apt/sources.list"
echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/fast"
mkdir "$root/packages"
cp "$packages"/*.{whl,deb,gz} "$root/packages/"

failures=0
within() {
  chroot "$root" env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 TERM=dumb \
    DEBIAN_FRONTEND=noninteractive COLUMNS=100 "${proxies[@]}" bash -c "cd; $1" 2>&1
}
wants() { # STATUS TEXT COMMAND: how the command line ends in there, and what it prints somewhere
  local got=0 out
  out=$(within "$3") || got=$?
  if [[ $got -ne $1 || $out != *"$2"* ]]; then
    printf 'FAILED: %s\n  ended with %s, wanted %s and "%s"; its last lines:\n%s\n' "$3" "$got" "$1" "$2" "$(tail -20 <<<"$out")"
    failures=$((failures + 1))
  else
    echo "ok: $3"
  fi
}
plan='plan --model llama-2-13b --cluster 8x8xa100-80gb --seq-len 4096 --global-batch 1024'

echo "== What is not there"
wants 1 '' 'command -v g++ gcc nvcc mpirun sextant'
wants 1 '' 'ldconfig -p | grep -E "libtbb|libfmt|libmpi|libdnnl|libcuda|libyaml-cpp|libnlopt"'

echo "== Wheel"
wants 0 'Successfully installed sextant' 'python3 -m venv /opt/env && /opt/env/bin/pip install --no-index /packages/sextant-*.whl'
wants 0 'run: DP64 ZeRO-3' "/opt/env/bin/sextant $plan"
wants 0 "key='tp1.pp1.vp1.cp1.dp64.z3.mbs2'" "/opt/env/bin/python -c 'import sextant; print(sextant.plan(model=\"llama-2-13b\", \
cluster=\"8x8xa100-80gb\", seq_len=4096, global_batch=1024).recommended)'"
wants 0 'built without MPI' '/opt/env/bin/sextant doctor'
wants 0 '/opt/env/' '/opt/env/bin/python -c "import sextant; print(sextant.program())"'
wants 0 '.TH SEXTANT' 'head -1 /opt/env/share/man/man1/sextant.1'
wants 3 'llama-9' '/opt/env/bin/python -m sextant plan --model /tmp/llama-9.json --cluster laptop'
wants 127 'cannot open shared object file' 'mv /opt/env/lib/python3*/site-packages/sextant/lib /opt/lib && /opt/env/bin/sextant --version' # the control
wants 0 '' 'rm -rf /opt/*'

echo "== Tarball"
wants 0 '' 'mkdir -p "/srv/another place" && tar -C "/srv/another place" -xzf /packages/sextant-*.tar.gz'
wants 0 'run: DP64 ZeRO-3' "'/srv/another place'/sextant-*/bin/sextant $plan"
wants 0 'complete -o filenames -F _sextant sextant' "cat '/srv/another place'/sextant-*/share/bash-completion/completions/sextant"
wants 0 'run: DP64' "mv '/srv/another place' /srv/third && setpriv --reuid 65534 --clear-groups /srv/third/sextant-*/bin/sextant $plan"
wants 0 '' 'rm -rf /srv/third'

echo "== Debian package"
wants 1 'dependency problems' 'apt-get -q update >/dev/null && dpkg -i /packages/sextant_*.deb'
wants 0 'Setting up sextant' 'apt-get -q -y --no-install-recommends -f install'
wants 0 'run: DP64 ZeRO-3' "sextant $plan"
wants 0 'local, env, mpi' 'sextant doctor'
wants 0 '/usr/share/sextant/presets' 'sextant doctor'
wants 0 'doctor' 'source /usr/share/bash-completion/completions/sextant; COMP_WORDS=(sextant doc) COMP_CWORD=1; _sextant; echo "${COMPREPLY[@]}"'
wants 0 '' 'test -s /usr/share/zsh/vendor-completions/_sextant -a -s /usr/share/fish/vendor_completions.d/sextant.fish'
wants 0 '' 'apt-get -q -y --no-install-recommends install man-db'
wants 0 'plan, simulate and run LLaMA training layouts' 'man sextant | cat'
wants 0 '--global-batch N' 'man sextant-plan | cat'
wants 0 '' 'dpkg --purge sextant && ! ls -d /usr/share/*/sextant /usr/share/sextant 2>/dev/null'
[[ $failures -eq 0 ]] || { echo "$failures failed"; exit 1; }
echo "All packages install on a bare machine."
